"""Uses everything that Warren serves with the unmodified public Python client. Prints the name of each check that passed."""

from createos import (
    APIError,
    Client,
    CreateSandboxRequest,
    ForkSandboxRequest,
    ManagedProcessCreateRequest,
    NetworkCreateRequest,
    RunCommandRequest,
    SandboxStatus,
)
from createos.models import (
    ListSandboxesOptions,
    ManagedProcessConnectOptions,
    ManagedProcessSignal,
    ManagedProcessWaitOptions,
    ManagedProcessWaitScope,
    PTYSize,
    RequestOptions,
)

SHAPE = "s-1vcpu-256mb"
client = Client(timeout=240)


def check(name, condition, value=None):
    if not condition:
        raise AssertionError(f"{name}: {value!r}")
    print(name, flush=True)


def check_error(name, status, text, call):
    try:
        value = call()
    except APIError as error:
        check(name, error.status_code == status and text in str(error), error)
    else:
        raise AssertionError(f"{name}: {value!r}")


def sh(sandbox, script, **more):
    return sandbox.run_command(RunCommandRequest("sh", ["-c", script], **more)).result


check("probes", client.health().up and client.readiness().ready)
check("catalog", client.list_root_file_systems().default in client.list_root_file_systems().root_file_systems)
quotas = {shape.id: shape.cpu_quota_pct for shape in client.list_shapes()}
check("quotas of shapes", (quotas["s-0.25vcpu-512mb"], quotas["s-1vcpu-1gb"]) == (25, 0), quotas)

one = client.create_sandbox(
    CreateSandboxRequest(SHAPE, name="py-one", environment_variables={"A": "a"}, ingress_enabled=True)
)
check("create", one.status == SandboxStatus.RUNNING and one.data.spawn_milliseconds > 0, one.data)
check("preview url", "-8000." in one.preview_url(8000))
check("by address", client.get_sandbox_by_ip(one.ip_address).id == one.id)
found = client.list_sandboxes(ListSandboxesOptions(status=SandboxStatus.RUNNING))
check("list", [item.id for item in found] == [one.id], found)
check_error("a name in use", 409, "already in use", lambda: client.create_sandbox(CreateSandboxRequest(SHAPE, name="py-one")))
check_error("an unknown shape", 400, "shape", lambda: client.create_sandbox(CreateSandboxRequest("large")))
check_error("an unknown sandbox", 404, "sandbox not found", lambda: client.get_sandbox("sb-none/../%"))

result = sh(one, "cat; echo $A >&2; exit 3", standard_input="in")
check("exec", (result.standard_output, result.standard_error, result.exit_code) == ("in", "a\n", 3), result)
check("an unknown command", one.run_command(RunCommandRequest("none")).result.exit_code == 127)
with one.stream_command(RunCommandRequest("sh", ["-c", "echo out; echo err >&2; exit 4"])) as stream:
    events = list(stream)
check("stream", sorted(str(item.type) for item in events) == ["exit", "stderr", "stdout"] and events[-1].exit_code == 4)

content = bytes(range(256)) * 4096
one.files.upload("/var/tmp/a b/ü+%25.bin", iter([content[:1000], content[1000:]]))
with one.files.download("/var/tmp/a b/ü+%25.bin") as download:
    check("files", download.read() == content)
check_error("a missing file", 404, "file not found", lambda: one.files.download("/none"))
check_error("an invalid path", 400, "path", lambda: one.files.upload("none", b""))

script = "while read line; do echo got $line; done; exit 5"
pipe = one.processes.create(ManagedProcessCreateRequest("sh", ["-c", script], "/tmp"))
one.processes.input(pipe.process_id, "one\n")
one.processes.close_standard_input(pipe.process_id)
ended = one.processes.wait(pipe.process_id, ManagedProcessWaitOptions(scope=ManagedProcessWaitScope.TREE))
check("process", (ended.exit_code, ended.tree_exited, ended.working_directory) == (5, True, "/tmp"), ended)
events = list(one.processes.connect(pipe.process_id))
check("output of a process", b"".join(item.data for item in events) == b"got one\n" and events[-1].exit_code == 5, events)
check_error("input after the end", 409, "process_exited", lambda: one.processes.input(pipe.process_id, "x"))
pty = one.processes.create(ManagedProcessCreateRequest(pty=PTYSize(30, 100)))
one.processes.resize(pty.process_id, PTYSize(40, 120))
# The shell prints the end after it has taken the terminal back from stty. Before that, a signal would reach only stty.
one.processes.input(pty.process_id, "stty size; echo the en''d\n")
output = b""
with one.processes.connect(pty.process_id, ManagedProcessConnectOptions(after_sequence=0)) as stream:
    while b"the end" not in output:
        output += next(stream).data
check("size", b"40 120" in output, output)
one.processes.signal(pty.process_id, ManagedProcessSignal.KILL)
ended = one.processes.wait(pty.process_id)
check("terminal", (ended.signal, ended.exit_code) == ("SIGKILL", None), ended)

token = one.create_access_token().token
holder = one.with_access_token(token)
check("token", sh(holder, "echo in").standard_output == "in\n")
check_error("a token without permission", 403, "token_not_allowed", lambda: holder.set_egress([]))
check("token hint", one.get_access_token().token_hint.split("...")[0] in token)
one.rotate_access_token()
check_error("a rotated token", 401, "invalid api key", holder.refresh)
check("disable", not one.disable_access_token().enabled)

check("egress", one.set_egress(["example.com", "1.2.3.0/24:22"]).egress_rules == one.egress().egress_rules)
check_error("an invalid rule", 400, "egress", lambda: one.set_egress(["example.com:22"]))
quota = one.bandwidth().quota_bytes
check("recharge", one.recharge_bandwidth(1024).quota_bytes == quota + 1024)
one.set_auto_pause(60)
check("auto-pause", one.data.auto_pause_after_seconds == 60)
one.set_auto_pause(None)
network = client.networks.create(NetworkCreateRequest("py-net"))
one.attach_network("py-net")
check("network", [item.name for item in client.networks.get(network.id).members] == ["py-one"])
check_error("a network with members", 409, "members", lambda: client.networks.delete(network.id))
one.detach_network(network.id)
client.networks.delete("py-net")
check("disks", one.list_disks() == [])

check_error("fork before pause", 409, "expected paused", one.fork)
one.pause().wait_until_paused()
check_error("exec while paused", 404, "expected running", lambda: sh(one, "true"))
child = one.fork(ForkSandboxRequest(environment_variables={"A": "b"}))
check("fork", child.data.forked_from == one.id)
child.wait_until_running()
one.resume().wait_until_running()
check("both run after the fork", [sh(item, "echo $A").standard_output for item in (one, child)] == ["a\n", "b\n"])

for sandbox in (one, child):
    sandbox.destroy()
    sandbox.wait_until_destroyed()
check("destroy", client.get_sandbox(one.id).status == SandboxStatus.DESTROYED)
full = RequestOptions(disable_retry=True)
check_error("an unknown host", 503, "cannot fit", lambda: client.create_sandbox(CreateSandboxRequest(SHAPE, host_id="no"), full))
