"""What a worker runs: `celery -A tests.adapters.celery_plugin.app worker`."""

import json
import os

from tests.adapters.celery_plugin.shop import SETTINGS, Settings, shop

app = shop(Settings(**json.loads(os.environ[SETTINGS])))
