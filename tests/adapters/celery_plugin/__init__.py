"""Tasks of Celery that are protected, in real workers."""
