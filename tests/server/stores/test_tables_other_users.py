"""Other users of the machine cannot have tables written where they like."""

import os

import pytest
from tests.kit.other_user import OTHER, needs_another_user

from penstock import Settings
from penstock.errors import StoreError
from penstock.stores.opening import open_tables


async def refused(home):
    with pytest.raises(StoreError) as error:
        await open_tables(Settings(home=str(home))).open()
    return str(error.value)


async def test_a_data_directory_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o770)
    assert (await refused(tmp_path)).endswith(f"type: chmod go-w {tmp_path}")


@pytest.mark.parametrize("name", ["tables.db", "tables.db-turn"])
async def test_a_link_in_the_place_of_the_file_is_refused(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / name).symlink_to(precious)
    assert "it is a symbolic link: remove it" in await refused(tmp_path)
    assert precious.read_text() == "precious"


@needs_another_user
@pytest.mark.parametrize("name", ["tables.db", "tables.db-wal", "tables.db-turn"])
async def test_a_file_that_another_user_left_there_is_refused(tmp_path, name):
    (tmp_path / name).touch()
    os.chown(tmp_path / name, OTHER, OTHER)
    assert f"it belongs to uid {OTHER}: remove it" in await refused(tmp_path)
