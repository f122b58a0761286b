"""The contract on the in-process broker."""

import pytest

from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.testing import AdapterContract


class TestMemoryAdapter(AdapterContract):
    keeps_key = True
    keeps_tombstones = True

    @pytest.fixture(autouse=True)
    def _broker(self):
        self.broker = MemoryBroker()
        self.reasons = {}

    @staticmethod
    def nothing_comes(adapter, for_s=0.1):
        """Shorter than on a server: in one process what comes again is there at once."""
        AdapterContract.nothing_comes(adapter, for_s)

    def make_adapter(self, **options):
        return MemoryAdapter(self.broker, **options)

    def send(self, message):
        self.broker.publish(message)

    def dead_letters(self, subject):
        letters = self.broker.dead_letters(subject)
        self.reasons = {letter.message.id: letter.reason for letter in letters}
        return [letter.message for letter in letters]

    def reason(self, letter):
        return self.reasons[letter.id]

    def cut(self, adapter):
        self.broker.disconnect(adapter._epoch)
