"""The ladder where equality with one device is given up on purpose: identities that hold exactly in its place.

What a lossy average loses it must lose honestly. Nothing says how far its weights may be from one device's, but what it
sent and what it kept are together what it was given; told to lose nothing it is the exact average; and so on. Each
identity is run on real ranks and prints like a rung: how far off it was, and how far it may be, 0 being to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.verify.identities.climb import Identities, NotHeld, all_identities, climb_identities, identities_of
else:
    __getattr__, __dir__ = listed_names(__name__)
