"""What a node remembers of its server goes with the server's files, and stays beside a copy of them."""

from pathlib import Path

from penstock.node.app import forget_lost_store
from penstock.node.config import Config


def test_a_folder_that_was_removed_is_no_store_that_went_back(tmp_path: Path) -> None:
    config = Config(data=str(tmp_path / "data"))
    memory, store = config.memory_file(), tmp_path / "data" / "server" / "jetstream"
    forget_lost_store(config)
    memory.parent.mkdir()
    memory.write_text("{}")
    store.mkdir(parents=True)
    forget_lost_store(config)
    assert memory.exists(), "these may be the files of before, and older"
    store.rmdir()
    forget_lost_store(config)
    assert not memory.exists()
