"""What `kubectl apply -k` sends of a directory of deploy/: the part of kustomize that these use. Anything else there is an error."""

import json
import subprocess

from environments import KUBERNETES, environment

# What a kustomization.yaml may have. The namespace is written in each document, too.
KNOWN = {"apiVersion", "kind", "namespace", "resources", "patches", "images"}


class Wrong(Exception):
    """What kustomize refuses, or this part of it does not know."""


def read(*texts):
    """All documents of these texts, by the YAML library of the manifests' validator. Raises Missing."""
    program = "import json, sys, yaml\nprint(json.dumps([d for text in json.load(sys.stdin) for d in yaml.safe_load_all(text)]))"
    done = subprocess.run([environment(KUBERNETES) / "python", "-c", program], input=json.dumps(texts), capture_output=True,
                          text=True, check=True)
    return json.loads(done.stdout)


def documents(place):
    return list(_documents(place.resolve()).values())


def _documents(place):
    """{(kind, name): document}"""
    said, = read((place / "kustomization.yaml").read_text())
    if said.keys() - KNOWN:
        raise Wrong(f"{place.name}: {', '.join(sorted(said.keys() - KNOWN))} of kustomize is not known here")
    found = {}
    for name in said["resources"]:
        resource = (place / name).resolve()
        if place.is_relative_to(resource):
            raise Wrong(f"{place.name}: kustomize takes no base that holds its overlay")
        found |= _documents(resource) if resource.is_dir() else {_key(d): d for d in read(resource.read_text())}
    for patch in said.get("patches", []):
        words, = read(patch["patch"])
        key = _key(patch["target"]) if "target" in patch else _key(words)
        if key not in found:
            raise Wrong(f"{place.name}: a patch of what is not there: {key}")
        if "target" in patch:
            for change in words:
                _replace(found[key], change)
        elif words.get("$patch") == "delete":
            del found[key]
        else:
            raise Wrong(f"{place.name}: a patch that neither deletes nor replaces: {words}")
    for image in said.get("images", []):
        for container in _containers(found.values()):
            if container["image"].rsplit(":", 1)[0] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return found


def _key(document):
    return document["kind"], document.get("metadata", document)["name"]


def _containers(found):
    return [container for document in found if document["kind"] == "StatefulSet"
            for container in document["spec"]["template"]["spec"]["containers"]]


def _replace(document, change):
    """By JSON patch. What is replaced must be of the same flag, so that a base whose arguments move is noticed."""
    *way, last = [int(part) if part.isdigit() else part for part in change["path"].strip("/").split("/")]
    for part in way:
        document = document[part]
    flag = change["value"].split("=")[0]
    if change["op"] != "replace" or document[last].split("=")[0] != flag:
        raise Wrong(f"{change['op']} of {document[last]} by {change['value']}")
    document[last] = change["value"]
