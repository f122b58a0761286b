"""`python -m examples.demo`: real flights through duplicates and crashes. `make demo` runs it."""

from examples.demo.command import demo
from examples.demo.demonstration import program
from examples.demo.services.command import services_demo
from examples.demo.spark.command import spark_demo

app = program(
    "python -m examples.demo",
    {
        demo: (
            "flights",
            "flights --flights 2000",
            "flights --checker transactional+postgresql+psycopg://user:password@host/db",
            "flights --checker redis://localhost",
            "flights --broker amqp://localhost",
        ),
        services_demo: ("services", "services --flights 2000 --kills 1"),
        spark_demo: (
            "spark",
            "spark --flights 2000 --months 2 --kills 1",
            "spark --store mysql+pymysql://user:password@host/db",
            "spark --store redis://localhost",
        ),
    },
)

if __name__ == "__main__":
    app(prog_name="python -m examples.demo")
