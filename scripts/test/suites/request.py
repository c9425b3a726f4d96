"""Adds a request for all GPUs to the config.json that a call of `create` or `run` reads, as an image's would be.

The files of a container with a user namespace are given to its root, as engines do.
"""

import json
import os
import sys

words = sys.argv[1:]
if "create" not in words and "run" not in words:
    sys.exit()


def value(long, short):
    """Returns an option's value in one of the four ways to write it."""
    for i, word in enumerate(words):
        if word in (long, short) and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(long + "="):
            return word[len(long) + 1 :]
    return None


path = value("--config", "-f") or (value("--bundle", "-b") or ".") + "/config.json"
try:
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    mappings = spec.get("linux", {}).get("uidMappings")
    if mappings:
        root, owner = os.path.join(os.path.dirname(path), spec["root"]["path"]), mappings[0]["hostID"]
        for place, directories, files in os.walk(root):
            for name in [".", *directories, *files]:
                os.lchown(os.path.join(place, name), owner, owner)
    environment = spec["process"].setdefault("env", [])
    if not any(entry.startswith("NVIDIA_VISIBLE_DEVICES=") for entry in environment):
        environment.append("NVIDIA_VISIBLE_DEVICES=all")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(spec, file, indent="\t")
except (OSError, ValueError, KeyError, TypeError, AttributeError):
    # A test of what the runtime says to a wrong or missing file.
    pass
