"""A report says what the agent downloaded, and flags a model hub."""

from dataclasses import replace

from agent2rl.core.network import HostTraffic, NetworkUsage
from agent2rl.report import headline, markdown, sections, tables
from agent2rl.report.report_data import ReportData
from tests.report.sample_reports import make_finished_report


def make_report(network: str, *hosts: HostTraffic) -> ReportData:
    data = make_finished_report()
    assert data.view.result is not None
    spec = data.view.spec.model_copy(update={"network": network})
    usage = NetworkUsage(
        policy=network,
        requests=12,
        refused=2,
        received_bytes=sum(each.received_bytes for each in hosts),
        sent_bytes=4000,
        hosts=hosts,
        packages=("einops==0.8.1",),
    )
    result = data.view.result.model_copy(update={"spec": spec, "network": usage})
    return replace(data, view=replace(data.view, spec=spec, result=result))


PYPI = HostTraffic(host="files.pythonhosted.org", requests=9, sent_bytes=4000, received_bytes=1_300_000_000)
HUB = HostTraffic(
    host="huggingface.co", requests=1, sent_bytes=10, received_bytes=270_000_000, model_hub=True
)


def test_downloads_are_summed_up_with_their_hosts() -> None:
    data = make_report("packages", PYPI)
    rows = {name: text for name, text, *_ in tables.build_headline_rows(data.view)}
    assert rows["network"] == "packages: the registries of PyPI, npm, conda and Debian"
    assert rows["network use"] == (
        "downloaded 1.3 GB from files.pythonhosted.org (1.3 GB); sent 4.0 kB; 12 requests, 2 refused"
    )
    assert rows["installed"] == "einops==0.8.1"
    (check,) = [each for each in sections.run_integrity_checks(data) if each.name == "Network"]
    assert (check.tone, check.verdict) == ("plain", "packages")
    assert "with the network policy packages" in headline.build_sentence(data)
    assert "downloaded 1.3 GB from files.pythonhosted.org" in markdown.page(data)


def test_a_download_from_a_model_hub_is_flagged() -> None:
    data = make_report("open:huggingface.co", HUB, PYPI)
    (check,) = [each for each in sections.run_integrity_checks(data) if each.name == "Network"]
    assert (check.tone, check.verdict) == ("bad", "model hub")
    assert "huggingface.co (270.0 MB)" in check.text
    assert "The agent downloaded from a model hub: huggingface.co." in [
        flag.text for flag in headline.build_flags(data)
    ]


def test_a_record_of_requests_that_is_not_whole_is_flagged() -> None:
    data = make_report("packages", PYPI)
    assert data.view.result is not None
    assert data.view.result.network is not None
    fault = "A line of network.jsonl could not be written (No space left on device)."
    usage = data.view.result.network.model_copy(update={"record_fault": fault})
    result = data.view.result.model_copy(update={"network": usage})
    data = replace(data, view=replace(data.view, result=result))
    rows = {name: text for name, text, *_ in tables.build_headline_rows(data.view)}
    assert rows["network use"].endswith(f". THE RECORD IS NOT WHOLE: {fault}")
    (check,) = [each for each in sections.run_integrity_checks(data) if each.name == "Network"]
    assert (check.tone, check.verdict) == ("bad", "record not whole")
    assert "The record of the agent's requests is not whole." in [
        flag.text for flag in headline.build_flags(data)
    ]


def test_a_run_without_a_network_says_so_in_its_setup_alone() -> None:
    data = make_finished_report()
    assert ("network", "none") in sections.build_setup_rows(data)
    assert "network" not in [row[0] for row in tables.build_headline_rows(data.view)]
    assert not [each for each in sections.run_integrity_checks(data) if each.name == "Network"]
