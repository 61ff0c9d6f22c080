"""The two pluggy markers. Apart from everything else so that importing ``hookimpl`` costs nothing."""

import pluggy

PROJECT = "optistack"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
