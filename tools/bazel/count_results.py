"""Counts test cases in the event file of a bazel test run (--build_event_json_file).

Prints each test target that did not pass and each that was left out, then `<passed> <failed> <skipped>`. Test cases
count one by one where the test wrote them to its test.xml; a target that failed without a failed case (it crashed, timed
out or was not built) counts as one failure, and one left out as one skipped.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def cases_of(xml_path):
    """(passed, failed, skipped) in one test.xml; Bazel writes one case for a test that writes none."""
    passed = failed = skipped = 0
    try:
        cases = ElementTree.parse(xml_path).iter("testcase")
    except (OSError, ElementTree.ParseError):
        return 0, 0, 0
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif (
            case.find("skipped") is not None
            or case.get("result") in ("skipped", "suppressed")
            or case.get("status") == "notrun"
        ):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(event_file, expected_targets):
    status = {}  # test target -> its overall status
    files = {}  # test target -> (shard, run) -> test.xml of the last attempt
    not_built = set()
    with open(event_file, encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            identity = event["id"]
            if "testResult" in identity:
                result = identity["testResult"]
                for output in event.get("testResult", {}).get("testActionOutput", []):
                    if output["name"] == "test.xml":
                        path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
                        shard = (result.get("shard"), result.get("run"))
                        files.setdefault(result["label"], {})[shard] = path
            elif "testSummary" in identity:
                label = identity["testSummary"]["label"]
                status[label] = event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
            elif "targetCompleted" in identity:
                left_out = event.get("aborted", {}).get("reason") == "SKIPPED"
                if not left_out and not event.get("completed", {}).get("success"):
                    not_built.add(identity["targetCompleted"]["label"])

    passed = failed = skipped = 0
    for label in not_built - set(status):
        status[label] = "NOT_BUILT"
    for label in sorted(set(status) | set(expected_targets)):
        if label not in status:
            print(f"left out: {label}")
            skipped += 1
            continue
        case_counts = [cases_of(path) for path in files.get(label, {}).values()]
        target_passed, target_failed, target_skipped = (
            map(sum, zip(*case_counts)) if case_counts else (0, 0, 0)
        )
        if status[label] not in ("PASSED", "FLAKY"):
            print(f"failed: {label} ({status[label]})")
            target_failed = max(target_failed, 1)
        passed += target_passed
        failed += target_failed
        skipped += target_skipped
    print(passed, failed, skipped)


if __name__ == "__main__":
    main(sys.argv[1], [line.strip() for line in sys.stdin if line.strip()])
