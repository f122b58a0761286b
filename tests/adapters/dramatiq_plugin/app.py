"""What a worker runs: `dramatiq tests.adapters.dramatiq_plugin.app:broker`."""

import json
import os

from tests.adapters.dramatiq_plugin.shop import SETTINGS, Settings, shop

broker = shop(Settings(**json.loads(os.environ[SETTINGS])), dies=os.environ["DIES"]).broker
