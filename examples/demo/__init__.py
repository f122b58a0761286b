"""`python -m examples.demo`: real flights, delivered at least once, booked with and without a checker."""
