"""Lets every Hydra application say `strategy: boa`: the files of conf/shared are found after the application's own."""

from __future__ import annotations

import os

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

SWITCH = "LIGHTNING_BOA_HYDRA"


class LightningBoaSearchPath(SearchPathPlugin):
    """Hydra finds and calls it wherever lightning-boa is installed, unless LIGHTNING_BOA_HYDRA=off."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if os.environ.get(SWITCH) == "off":
            return
        # Hydra puts the folder of --config-dir before the first "schema", and asks the ConfigStore there: both are the
        # user's, so they come before ours. It adds the "schema" that has to be last itself.
        search_path.append("schema", "structured://")
        search_path.append("lightning-boa", "pkg://hydra_plugins.lightning_boa_conf")
