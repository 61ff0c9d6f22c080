"""Where nobody can listen is wrong input, with the key that says where."""

from __future__ import annotations

import pytest

from optistack.apply.ports import free_port, require_free
from optistack.errors import InputError

ELSEWHERE = "192.0.2.1"
"""An address for documentation: no machine has it."""


def test_an_address_of_another_machine_is_refused_with_the_key() -> None:
    with pytest.raises(InputError, match=f"Cannot listen on {ELSEWHERE}: ") as caught:
        free_port(ELSEWHERE)
    assert "serving.host" in caught.value.fix
    with pytest.raises(InputError, match=f"Cannot listen on {ELSEWHERE} port 4000: "):
        require_free(ELSEWHERE, 4000)


def test_a_name_that_nobody_has_is_refused_with_the_key() -> None:
    with pytest.raises(InputError, match="Cannot listen on not a host: ") as caught:
        free_port("not a host")
    assert "serving.host" in caught.value.fix
