"""What a worker runs: `taskiq worker tests.adapters.taskiq_plugin.app:broker`."""

import json
import os

from tests.adapters.taskiq_plugin.shop import SETTINGS, Settings, Shop

broker = Shop(Settings(**json.loads(os.environ[SETTINGS])), dies=os.environ["DIES"]).broker
