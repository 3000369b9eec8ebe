/**
 * What the host agent and the guest agent say to each other. The other half is `guest-agent/` (Rust); its reasons are
 * in `guest-agent/src/channel.rs`. Whatever comes from the guest is hostile input: check it against these schemas.
 *
 * THE CHANNEL. Two virtio-serial ports of one machine, both with a QEMU chardev
 * `socket,path=…,server=on,wait=off` (one client at a time, the next waits in the backlog):
 *
 *   -device virtio-serial-pci,max_ports=4
 *   -device virtserialport,chardev=agent,name=warren.agent,nr=1,id=agent0     HTTP/2 travels here
 *   -device virtserialport,chardev=hello,name=warren.hello,nr=2,id=hello0     only greetings travel here
 *
 * A port outlives every host process and does not tell one from the next, so each new connection greets first:
 *
 *   0. host                connects both sockets
 *   1. host → hello port   `WARREN1 <n>\n`      n: 32 lower-case hex digits, random, never used before
 *   2. guest               ends the session before: resets its streams, kills its execs, shells and tunnels, forgets
 *                          pending output. Managed processes and their journals stay.
 *   3. guest → hello port  `WARREN1 <n> OK\n`   the host skips every byte before this line
 *   4. host → agent port   `WARREN1 <n>\n`      never before 3: it is what keeps the bytes of two hosts apart
 *   5. guest → agent port  `WARREN1 <n> OK\n`   the host skips every byte before this line
 *   6. HTTP/2 without TLS (h2c, prior knowledge), the host being the client, raw on the agent port
 *
 * For the host that means: after 5 give the socket itself to http2 (`createConnection: () => socket`), after `pause`
 * and `unshift` of what followed the line in the same chunk. No wrapper, no framing.
 *
 *   - Keep the hello socket open as long as the session, and send nothing on it but 1.
 *   - No answer to 1 or 4 within GUEST_HELLO_TIMEOUT_MS: close BOTH sockets and start over at 0 with a new number, as
 *     long as the machine is worth it. Normal after a first try: the guest still boots, or the port is still taken by
 *     a host that is dying, or the guest had to reset its device (`guest-agent/src/virtio_ports.rs`).
 *   - Skip with `data` events and byte by byte: stale bytes, up to some 100 KiB of them, may hold half lines. `W` occurs
 *     only at the front of a line, so a search that fails can only begin again at the byte that failed.
 *   - To end a session, close both sockets. The guest notices within about 20 ms.
 *   - Raise the windows (`settings.initialWindowSize`, `session.setLocalWindowSize`) and `maxSessionMemory`, or a slow
 *     reader of one stream holds up the others. The guest allows 128 KiB a stream and 1024 streams at once;
 *     a host that wants more must refuse, not queue.
 *
 * In development the same channel is on two unix sockets: `guest-agent --listen-unix PATH` serves the agent port at
 * PATH and the hello port at PATH.hello, with one client at a time.
 *
 * ENDPOINTS. JSON in and out (at most 1 MiB in) unless said otherwise. Failures are GuestFailure with the status.
 *
 *   GET  /ready     → GuestReady
 *   POST /wake      GuestWakeBody → GuestWakeAnswer      clock, entropy and identity in one trip, in this order
 *   POST /identity  GuestIdentityBody → GuestIdentityAnswer
 *   POST /clock     GuestClockBody → GuestClockAnswer
 *   POST /entropy   32 to 512 raw bytes → GuestEntropyAnswer
 *   POST /exec      exec frames → exec frames            guest-exec.ts
 *   *    /processes…                                     guest-processes.ts
 *   POST /shell, POST /tunnel, GET and POST /signals     guest-streams.ts
 *   PUT  /files?path=   raw bytes → GuestUploadAnswer    path percent-encoded (encodeURIComponent; a plus is a plus)
 *   GET  /files?path=   → raw bytes with content-length (absent for files the kernel makes up, as in /proc)
 *   GET  /metrics   → GuestMetrics
 *   POST /grow      GuestGrowBody → GuestGrowAnswer      the root filesystem fills its disk, online
 *   POST /sync      → {}                                 what was written is on the disk when it answers
 *   POST /poweroff  → 202 {}                             then the machine ends within about 0.3 s
 */
import { type Static, Type } from 'typebox'

export const GUEST_AGENT_PORT = 'warren.agent'
export const GUEST_HELLO_PORT = 'warren.hello'
export const GUEST_HELLO_NONCE = /^[0-9a-f]{32}$/
/** The guest answers within milliseconds. Not shorter: it needs 400 ms to find that its own queue is broken. */
export const GUEST_HELLO_TIMEOUT_MS = 1_000

export const guestHello = (nonce: string): string => `WARREN1 ${nonce}\n`
export const guestHelloAnswer = (nonce: string): string => `WARREN1 ${nonce} OK\n`

export const GuestFailure = Type.Object({
  code: Type.String({
    description:
      'invalid, too_large, not_found, file_not_found, invalid_path, not_writable, no_space, identity_failed, internal; more in guest-processes.ts and guest-streams.ts',
  }),
  message: Type.String(),
  oldest_available_seq: Type.Optional(Type.Integer({ description: 'With output_offset_expired only.' })),
})
export type GuestFailure = Static<typeof GuestFailure>

export const GuestReady = Type.Object({
  agent_version: Type.String(),
  boot_id: Type.String({ description: 'The same in all clones of one boot.' }),
  uptime_ms: Type.Integer(),
  clocksource: Type.String({ description: '`tsc` or `kvm-clock` where all is well.' }),
  process_trees: Type.Optional(
    Type.Enum(['cgroup', 'session'], {
      description: 'How descendants are found. `session`, without cgroup v2, misses those that made their own session.',
    }),
  ),
})
export type GuestReady = Static<typeof GuestReady>

export const GuestClockBody = Type.Object({
  unix_ns: Type.String({ pattern: '^[0-9]{1,19}$', description: 'Decimal text: a number would lose its last digits.' }),
})
export type GuestClockBody = Static<typeof GuestClockBody>

export const GuestClockAnswer = Type.Object({
  corrected_ms: Type.Number({ description: 'How far the clock was moved.' }),
})
export type GuestClockAnswer = Static<typeof GuestClockAnswer>

export const GuestEntropyAnswer = Type.Object({ added_bytes: Type.Integer(), reseeded: Type.Boolean() })
export type GuestEntropyAnswer = Static<typeof GuestEntropyAnswer>

/** Only what is given is touched. */
export const GuestIdentityBody = Type.Object({
  hostname: Type.Optional(Type.String({ pattern: '^[A-Za-z0-9.-]{1,63}$' })),
  machine_id: Type.Optional(Type.String({ pattern: '^[0-9a-f]{32}$' })),
  envs: Type.Optional(
    Type.Record(Type.String(), Type.String(), { description: 'Replaces all; in memory only, given to every exec.' }),
  ),
  ssh_pubkeys: Type.Optional(
    Type.Array(Type.String(), { description: "Replaces ours in root's authorized_keys; the user's own lines stay." }),
  ),
  renew_ssh_host_keys: Type.Optional(
    Type.Boolean({ description: 'Deletes /etc/ssh/ssh_host_*; they are made anew when sshd is first started.' }),
  ),
  mtu: Type.Optional(Type.Integer({ minimum: 576, maximum: 65_535 })),
  nameserver: Type.Optional(Type.String({ description: 'The only one in /etc/resolv.conf.' })),
  hosts: Type.Optional(
    Type.Array(Type.Object({ ip: Type.String(), names: Type.Array(Type.String(), { minItems: 1 }) }), {
      description: 'Our block of /etc/hosts; the host name is always in it.',
    }),
  ),
})
export type GuestIdentityBody = Static<typeof GuestIdentityBody>

/** What was set, read back from where programs will find it; a field that was not given is absent. */
export const GuestIdentityAnswer = Type.Object({
  hostname: Type.Optional(Type.String()),
  machine_id: Type.Optional(Type.String()),
  env_names: Type.Optional(Type.Array(Type.String())),
  ssh_pubkeys: Type.Optional(Type.Integer({ description: "All keys that open the door, the user's own included." })),
  ssh_host_keys_left: Type.Optional(Type.Integer({ description: '0 after a renewal.' })),
  mtu: Type.Optional(Type.Integer()),
  nameserver: Type.Optional(Type.String()),
  hosts: Type.Optional(Type.Integer({ description: 'Lines of our block of /etc/hosts.' })),
})
export type GuestIdentityAnswer = Static<typeof GuestIdentityAnswer>

export const GuestWakeBody = Type.Object({
  clock: Type.Optional(GuestClockBody),
  entropy: Type.Optional(Type.String({ pattern: '^([0-9a-f]{2}){32,512}$', description: 'Hex.' })),
  identity: Type.Optional(GuestIdentityBody),
})
export type GuestWakeBody = Static<typeof GuestWakeBody>

export const GuestWakeAnswer = Type.Object({
  clock: Type.Optional(GuestClockAnswer),
  entropy: Type.Optional(GuestEntropyAnswer),
  identity: Type.Optional(GuestIdentityAnswer),
})
export type GuestWakeAnswer = Static<typeof GuestWakeAnswer>

export const GuestUploadAnswer = Type.Object({ bytes: Type.Integer() })
export type GuestUploadAnswer = Static<typeof GuestUploadAnswer>

const GuestCpu = Type.Object({
  busy_ms: Type.Integer({ description: 'All but idle and waiting for disks.' }),
  idle_ms: Type.Integer(),
  iowait_ms: Type.Integer(),
  steal_ms: Type.Integer({ description: 'Taken by the host; counted in busy_ms.' }),
})

/** Counters since boot, not rates. */
export const GuestMetrics = Type.Object({
  uptime_ms: Type.Integer(),
  memory: Type.Object({ total_bytes: Type.Integer(), available_bytes: Type.Integer() }),
  cpu: GuestCpu,
  cores: Type.Array(GuestCpu),
  root: Type.Object({ total_bytes: Type.Integer(), used_bytes: Type.Integer(), available_bytes: Type.Integer() }),
  processes: Type.Integer(),
  load: Type.Array(Type.Number(), { minItems: 3, maxItems: 3 }),
})
export type GuestMetrics = Static<typeof GuestMetrics>

export const GuestGrowBody = Type.Object({
  device_bytes: Type.Optional(
    Type.Integer({ description: 'Waits until the guest sees a disk this large; its news takes about 0.1 s.' }),
  ),
})
export type GuestGrowBody = Static<typeof GuestGrowBody>

export const GuestGrowAnswer = Type.Object({
  device_bytes: Type.Integer(),
  before_bytes: Type.Integer({ description: 'Of the filesystem.' }),
  after_bytes: Type.Integer(),
})
export type GuestGrowAnswer = Static<typeof GuestGrowAnswer>
