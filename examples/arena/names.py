"""Player names. The server chooses them, so no text of one player is shown to another."""

import random
from collections.abc import Set

_FIRST = (
    "Amber", "Brave", "Calm", "Dusty", "Eager", "Fuzzy", "Gentle", "Happy",
    "Icy", "Jolly", "Keen", "Lucky", "Mellow", "Nimble", "Odd", "Proud",
    "Quick", "Rusty", "Sunny", "Tiny", "Urban", "Vivid", "Witty", "Zesty",
)  # fmt: skip
_SECOND = (
    "Badger", "Comet", "Dolphin", "Ember", "Falcon", "Gecko", "Heron", "Ibex",
    "Jackal", "Koala", "Lynx", "Marten", "Newt", "Otter", "Panda", "Quail",
    "Raven", "Stoat", "Tapir", "Urchin", "Viper", "Walrus", "Yak", "Zebra",
)  # fmt: skip


def fresh_name(source: random.Random, taken: Set[str]) -> str:
    name = ""
    for _ in range(8):
        name = f"{source.choice(_FIRST)} {source.choice(_SECOND)}"
        if name not in taken:
            return name
    number = 2
    while f"{name} {number}" in taken:
        number += 1
    return f"{name} {number}"
