"""Answers of game servers to queries, byte for byte as servers of these games send them.

The layouts and the values are facts of the protocols and of published answers. Names of servers and
players are our own.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

PREFIX: Final = b"\xff\xff\xff\xff"


class Recorded(NamedTuple):
    """Datagrams of a server, in the order of the requests of one query."""

    datagrams: tuple[bytes, ...]
    players: int
    """Players without bots."""


CHALLENGE: Final = PREFIX + b"A" + bytes.fromhex("0a085eea")
"""Source servers since December 2020: the answer to an A2S_INFO without a challenge."""

# Counter-Strike: Source 1.0.0.22 (2006), protocol 2, application 240: 5 of 16 players, 4 of them bots.
COUNTER_STRIKE_SOURCE: Final = (
    PREFIX
    + b"I\x02Our server\0de_dust\0cstrike\0Counter-Strike: Source\0"
    + bytes.fromhex("f000 05 10 04 64 6c 00 00")
    + b"1.0.0.22\0"
)
# Team Fortress 2 (version 7961495, 2023), protocol 17, application 440: 7 of 32 players. The extra data
# (0xb1) are the port, the id of the server, keywords and the id of the game. Control characters before
# the name move a server up in lists.
TEAM_FORTRESS_2: Final = (
    PREFIX
    + b"I\x11\x01\x01\x01\x01Our server | \xe2\x96\x88\xe2\x96\x88\0"
    + b"vsh_military_area_se6\0tf\0\xe2\x96\x88 Ours \xe2\x96\x88\0"
    + bytes.fromhex("b801 07 20 00 64 6c 00 01")
    + b"7961495\0"
    + bytes.fromhex("b1 8769 1920d4c1a1003001")
    + b"achievement,alltalk,arena,nocrits,vsh\0"
    + bytes.fromhex("b801000000000000")
)
# The Ship 1.0.0.4, protocol 7, application 2400: 1 of 5 players. Three bytes of the game (mode, witnesses,
# duration) are before the version.
THE_SHIP: Final = (
    PREFIX
    + b"I\x07Our server\0batavier\0ship\0The Ship\0"
    + bytes.fromhex("6009 01 05 00 64 77 00 00 01 03 03")
    + b"1.0.0.4\0"
)
# Counter-Strike 1.6 (Half-Life engine), protocol 48, application 10: 12 of 18 players, 2 of them bots.
COUNTER_STRIKE: Final = (
    PREFIX
    + b"I\x30Our server\0surf_ski\0cstrike\0Counter-Strike\0"
    + bytes.fromhex("0a00 0c 12 02 64 6c 00 01")
    + b"1.1.2.7/Stdio\0"
    + bytes.fromhex("80 8769")
)
# The form before 2008, which Half-Life servers sent first: address, names, 12 of 18 players, protocol 47,
# a dedicated Linux server without password, with a mod.
COUNTER_STRIKE_OLD: Final = (
    PREFIX
    + b"m192.0.2.110:27015\0Our server\0surf_ski\0cstrike\0Counter-Strike\0"
    + bytes.fromhex("0c 12 2f 64 6c 00 01")
    + b"www.counter-strike.net\0\0"
    + bytes.fromhex("00 01000000 00009e46 00 01 01 00")
)
# A2S_PLAYER of a Source server: a list with one player, 14 points, 514 s. No query asks for it.
PLAYER_LIST: Final = PREFIX + b"D\x01\x00Anna\0" + bytes.fromhex("0e000000 b49c0044")


def split(answer: bytes, size: int) -> list[bytes]:
    """Returns the packets of a Source server of the Orange Box and newer for a large answer.

    The header is -2, the id of the answer, the number of packets, the number of this one, and the
    maximum size of a packet.
    """
    parts = [answer[start : start + size] for start in range(0, len(answer), size)]
    return [
        b"\xfe\xff\xff\xff\x02\0\0\0" + bytes([len(parts), number]) + b"\xe0\x04" + part
        for number, part in enumerate(parts)
    ]


def split_half_life(answer: bytes, size: int) -> list[bytes]:
    """Returns the packets of a Half-Life server: the numbers of a packet are halves of one byte."""
    parts = [answer[start : start + size] for start in range(0, len(answer), size)]
    return [
        b"\xfe\xff\xff\xff\x02\0\0\0" + bytes([number << 4 | len(parts)]) + part
        for number, part in enumerate(parts)
    ]


_STATUS: Final = PREFIX + b"statusResponse\n"
# Quake III Arena 1.32c, protocol 68: two players and a bot without ping. A player that connects has ping 999.
QUAKE_3: Final = _STATUS + (
    b"\\sv_punkbuster\\0\\g_maxGameClients\\0\\capturelimit\\8\\sv_floodProtect\\1\\sv_maxPing\\0"
    b"\\sv_minPing\\0\\sv_dlRate\\100\\sv_maxRate\\25000\\sv_hostname\\Our server\\sv_maxclients\\16"
    b"\\timelimit\\15\\fraglimit\\20\\dmflags\\0\\version\\Q3 1.32c linux-i386 May  8 2006\\protocol\\68"
    b"\\g_gametype\\0\\mapname\\q3dm17\\sv_privateClients\\0\\sv_allowDownload\\0\\bot_minplayers\\3"
    b"\\gamename\\baseq3\\g_needpass\\0\n"
    b'12 48 "Anna B"\n-3 999 "^1Ben^7"\n5 0 "Sarge"\n'
)
# ET: Legacy 2.77.1 (2021) with the mod jaymod 2.2.0, protocol 84: scores of eight digits, names with
# spaces, brackets and colours, and an entry without a ping, which is a bot or a player that connects.
ET_LEGACY: Final = _STATUS + (
    b"\\omnibot_playing\\0\\P\\1233313222-313323113322311133\\voteFlags\\507903\\gamename\\jaymod"
    b"\\mod_version\\2.2.0\\sv_uptime\\00d15h36m\\mapname\\castleattack_b5\\protocol\\84"
    b"\\sv_hostname\\Our server\\sv_maxclients\\60\\version\\ET Legacy v2.77.1 linux-i386 Mar 17 2021\n"
    b'18246910 48 "^1anna "\n0 0 "e"\n0 59 "Ben the Second!"\n6128 98 "-C-"\n97845 150 "][][]["\n'
)
# Xonotic (DarkPlaces engine): the team is a third number. A spectator has the score -666.
XONOTIC: Final = _STATUS + (
    b"\\gamename\\Xonotic\\modname\\data\\gameversion\\805\\sv_maxclients\\16\\clients\\3\\bots\\1"
    b"\\mapname\\stormkeep\\hostname\\Our server\\protocol\\3\n"
    b'5 31 1 "^xF00Anna"\n-666 44 0 "Ben"\n0 0 2 "[BOT]Eureka"\n'
)
# ioquake3 1.36 without players: the list ends after the settings.
QUAKE_3_EMPTY: Final = (
    _STATUS + b"\\version\\ioq3 1.36 linux-x86_64\\protocol\\68\\sv_maxclients\\8\n"
)

DATAGRAMS: Final[dict[str, tuple[str, Recorded]]] = {
    "Counter-Strike: Source 1.0.0.22": ("a2s", Recorded((COUNTER_STRIKE_SOURCE,), 1)),
    "Team Fortress 2 7961495": ("a2s", Recorded((CHALLENGE, TEAM_FORTRESS_2), 7)),
    "The Ship 1.0.0.4": ("a2s", Recorded((THE_SHIP,), 1)),
    "Counter-Strike 1.1.2.7": ("a2s", Recorded((CHALLENGE, COUNTER_STRIKE), 10)),
    "Quake III Arena 1.32c": ("quake3", Recorded((QUAKE_3,), 2)),
    "ET: Legacy 2.77.1": ("quake3", Recorded((ET_LEGACY,), 4)),
    "Xonotic 0.8.5": ("quake3", Recorded((XONOTIC,), 2)),
    "ioquake3 1.36": ("quake3", Recorded((QUAKE_3_EMPTY,), 0)),
}


def varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def minecraft(status: Any) -> bytes:
    """Returns the packet of a status: lengths of the packet and of the text are varints."""
    text = status if isinstance(status, bytes) else json.dumps(status, ensure_ascii=False).encode()
    body = b"\0" + varint(len(text)) + text
    return varint(len(body)) + body


# Minecraft 1.8-pre1, protocol 44, without players: a packet of 114 bytes with a text of 112.
MINECRAFT_1_8: Final = (
    bytes.fromhex("72 00 70")
    + b'{"description":"A Minecraft Server","players":{"max":20,"online":0},'
    + b'"version":{"name":"1.8-pre1","protocol":44}}'
)
_SAMPLE: Final = [
    {"name": "anna", "id": "00000000-0000-4000-8000-000000000001"},
    {"name": "Anonymous Player", "id": "00000000-0000-0000-0000-000000000000"},
]
# Minecraft 1.20.4, protocol 765: the description is an object, and an icon makes the packet longer than
# 16 KiB, so that its length has three bytes.
MINECRAFT_1_20: Final = minecraft(
    {
        "version": {"name": "Paper 1.20.4", "protocol": 765},
        "favicon": "data:image/png;base64," + "iVBORw0KGgo" * 1_700,
        "enforcesSecureChat": True,
        "description": {"text": "A Minecraft Server \N{SNOWMAN}", "color": "gold"},
        "players": {"max": 20, "online": 3, "sample": _SAMPLE},
    }
)
# Forge for Minecraft 1.18.2 (protocol 758): the list of mods is in the answer.
MINECRAFT_FORGE: Final = minecraft(
    {
        "description": {"text": "Modded"},
        "players": {"max": 8, "online": 1},
        "version": {"name": "1.18.2", "protocol": 758},
        "forgeData": {
            "channels": [],
            "mods": [{"modId": "forge", "modmarker": "ANY"}],
            "fmlNetworkVersion": 3,
            "truncated": True,
        },
    }
)
STREAMS: Final[dict[str, tuple[str, bytes, int]]] = {
    "Minecraft 1.8-pre1": ("minecraft", MINECRAFT_1_8, 0),
    "Minecraft 1.20.4": ("minecraft", MINECRAFT_1_20, 3),
    "Minecraft 1.18.2 with Forge": ("minecraft", MINECRAFT_FORGE, 1),
    # No protocol: the form of `docs/reference/adapters.md`.
    "HTTP with a number": (
        "http",
        b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"players": 5}',
        5,
    ),
    "HTTP with a list": ("http", b'HTTP/1.0 200 OK\r\n\r\n{"players": ["a", "b"], "max": 8}', 2),
}
