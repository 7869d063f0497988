"""The application of a node on a server with logins: what it serves of itself, and what another program runs."""

import penstock
from tests.support import batch_app  # noqa: F401 (importing it defines its tasks)

penstock.external_batch("tag-images", "nats:penstock.ask.app.tags", retry_base_s=0.05)
