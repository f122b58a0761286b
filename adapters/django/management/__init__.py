"""The commands of `python manage.py`."""
