"""What adapter_from_url accepts and refuses for every broker alike."""

import pytest

from idempotent.adapters import FileAdapter, MemoryAdapter, adapter_from_url
from idempotent.errors import ConfigurationError

SECRET = "hunter2"
URLS = [
    "amqp://host",
    "amqps://host",
    "stomp://host",
    "stomp+ssl://host",
    "kafka://host",
    "memory://urls",
    "file://x",
]


@pytest.mark.parametrize("url", URLS)
def test_an_unknown_option_is_refused_by_its_name_in_the_url_and_in_code(url):
    with pytest.raises(ConfigurationError, match="unknown option 'colour'; known: "):
        adapter_from_url(f"{url}?colour=red")
    with pytest.raises(ConfigurationError, match="'colour'"):
        adapter_from_url(url, colour="red")


@pytest.mark.parametrize("url", URLS)
def test_every_scheme_takes_fail_fast_also_one_that_never_waits(url):
    adapter = adapter_from_url(url.upper().replace("HOST", "host"), fail_fast=True)
    assert type(adapter).__module__.startswith("idempotent.adapters.")


def test_only_an_adapter_that_waits_knows_fail_fast_as_an_option():
    adapter_from_url("kafka://host?fail_fast=yes")
    for url in ("memory://urls?fail_fast=yes", "file://x?fail_fast=yes"):
        with pytest.raises(ConfigurationError, match="unknown option 'fail_fast'"):
            adapter_from_url(url)


@pytest.mark.parametrize("scheme", ["amqp", "stomp", "kafka", "pigeon"])
@pytest.mark.parametrize("letter", "?#[/@")
def test_no_error_shows_a_password_with_an_unescaped_letter(scheme, letter):
    url = f"{scheme}://user:{SECRET}{letter}{SECRET}@host"
    for bad in (url, f"{url}?colour=red", f"{url}?prefetch=many"):
        message = ""
        try:
            adapter_from_url(bad)
        except ConfigurationError as error:
            message = str(error)
        assert SECRET not in message


def test_a_text_without_a_scheme_is_refused_without_repeating_it():
    with pytest.raises(ConfigurationError, match="the scheme ''; known: amqp://"):
        adapter_from_url("orders.jsonl")


def test_a_dash_is_standard_input_and_a_slash_belongs_to_the_name_of_a_memory_broker():
    files, memory = adapter_from_url("-"), adapter_from_url("memory://team/orders%20paid")
    assert isinstance(files, FileAdapter)
    assert files.path == "-"
    assert isinstance(memory, MemoryAdapter)
    assert memory.broker is adapter_from_url("memory://team/orders paid").broker
