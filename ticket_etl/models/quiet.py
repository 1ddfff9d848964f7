"""Keeps transformers and the hub library silent and off the network while this program uses them.

Their progress bars write carriage returns into a cron log; their warnings are about choices that are made here on
purpose. Both come back as they were after the block.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_libraries(*, offline: bool) -> Iterator[None]:
    """Silence bars, logs and warnings for the block; with `offline`, make any request to the hub fail at once."""
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # said outright, a later fork prints no warning
    verbosity, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    was_offline = constants.HF_HUB_OFFLINE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        disable_progress_bars()
        constants.HF_HUB_OFFLINE = was_offline or offline
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = was_offline
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
            if not hub_bars:
                enable_progress_bars()
