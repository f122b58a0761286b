"""The console, `idempotent web`: dead letters, keys and outboxes in a browser, and what a person decides about them.

A request comes through `serve` (uvicorn) and `guard` (may this person do that?) to a method of `app` or, if it is about
one consumer, of `consumer_pages`. These show templates (`pages`) of what `desks` knows of a consumer and `stores` of a
store, and note in `audit` what is done. Nothing here decides what a change of a key or a letter means: that is in
`idempotent.admin` and `idempotent.redrive`, as for the commands.
"""
