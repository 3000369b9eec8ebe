/**
 * The protocol between the host agent and the guest agent (`guest-agent/`, in Rust). Everything that comes from the guest
 * is hostile input and must be checked against these schemas.
 *
 * THE CHANNEL. A VM has two virtio-serial ports, each connected to a QEMU chardev `socket,path=…,server=on,wait=off`
 * (one client at a time; the next one waits in the backlog):
 *
 *   -device virtio-serial-pci,max_ports=4
 *   -device virtserialport,chardev=agent,name=warren.agent,nr=1,id=agent0     carries HTTP/2
 *   -device virtserialport,chardev=hello,name=warren.hello,nr=2,id=hello0     carries hellos only
 *
 * A port outlives every host process and does not show where one connection ends and the next begins. So the host first
 * connects both sockets and sends a hello with a nonce. guest-agent/src/channel.rs numbers the same steps and explains
 * why they are correct:
 *
 *   1. host → hello port   `WARREN1 <n>\n`      n, the nonce: 32 lower-case hex digits, random, never reused
 *   2. guest               ends the previous session: resets its streams, kills its execs, shells and tunnels, drops
 *                          pending output. Managed processes and their journals are retained.
 *   3. guest → hello port  `WARREN1 <n> OK\n`   the host skips every byte before this line
 *   4. host → agent port   `WARREN1 <n>\n`      never before 3, which separates the bytes of two hosts
 *   5. guest               skips every byte on the agent port before this line
 *   6. guest → agent port  `WARREN1 <n> OK\n`
 *   7. host                skips every byte on the agent port before this line; then both sides use HTTP/2 without TLS
 *                          (h2c with prior knowledge), with the host as the client
 *
 * Rules for the host:
 *
 *   - In step 7, pass the socket to http2 unchanged (`createConnection: () => socket`), after `pause` and `unshift` of
 *     the bytes that followed the line in the same chunk. There is no further framing.
 *   - Keep the hello socket open as long as the session, and send nothing but step 1 on it.
 *   - If step 1 or 4 gets no response within GUEST_HELLO_TIMEOUT_MS, close BOTH sockets, connect them again and repeat
 *     from step 1 with a new nonce. This is normal: the guest may still be booting, the port may still be held by a host
 *     process that is exiting, or the guest had to reset its device (`guest-agent/src/virtio_ports.rs`).
 *   - Skip with `data` events and byte by byte: up to about 100 KiB of stale bytes may contain partial lines. `W` occurs
 *     only at the start of a line, so a failed match can resume at the byte that failed.
 *   - To end a session, close both sockets. The guest notices within about 20 ms.
 *   - Raise the windows (`settings.initialWindowSize`, `session.setLocalWindowSize`) and `maxSessionMemory`; otherwise a
 *     slow reader of one stream blocks the others. The guest allows 128 KiB per stream and 1024 concurrent streams; a
 *     host that needs more must refuse requests instead of queueing them.
 *
 * For development, `guest-agent --listen-unix PATH` serves the same channel on two unix sockets: the agent port at PATH
 * and the hello port at PATH.hello, with one client at a time.
 *
 * ENDPOINTS. Bodies are JSON, at most 1 MiB in requests, unless noted otherwise. Failures are GuestFailure with a 4xx or
 * 5xx status. guest-routes.ts is the table of routes.
 *
 *   GET  /ready     → GuestReady
 *   POST /wake      GuestWakeBody → GuestWakeResponse      sets clock, entropy and identity in one request, in this order
 *   POST /identity  GuestIdentityBody → GuestIdentityResponse
 *   POST /clock     GuestClockBody → GuestClockResponse
 *   POST /entropy   32 to 512 raw bytes → GuestEntropyResponse
 *   POST /exec      exec frames → exec frames            see guest-exec.ts
 *   *    /processes…                                     see guest-processes.ts
 *   *    /mounts…                                        see guest-mounts.ts
 *   POST /shell, POST /tunnel, GET and POST /signals     see guest-streams.ts
 *   PUT  /files?path=   raw bytes → GuestUploadResponse    path percent-encoded (encodeURIComponent; `+` is a plus)
 *   GET  /files?path=   → raw bytes with content-length (absent for files without a size, as in /proc)
 *   GET  /metrics   → GuestMetrics
 *   POST /grow      GuestGrowBody → GuestGrowResponse      grows the root filesystem to the size of its disk, online
 *   POST /sync      → {}                                 responds when all written data is on the disk
 *   POST /folders   GuestFolderBody → {}                   creates a folder and its missing parents; 400 invalid_owner
 *   POST /freeze    → GuestFrozen                        the root filesystem is on the disk and does not change until /thaw,
 *                                                        or for 30 s
 *   POST /thaw      → {}                                 also succeeds if it is not frozen
 *   POST /pack      GuestPackBody → {}                     makes an image of the root filesystem: without the identity of
 *                                                        this guest, trimmed
 *   POST /poweroff  → 202 {}                             the VM then ends within about 0.3 s
 *
 * A request with the header `traceparent` is answered with the time that it took in the guest: guest-spans.ts.
 */
import { type Static, Type } from 'typebox'
import { GuestOwner } from './guest-processes.ts'

export const GUEST_AGENT_PORT = 'warren.agent'
export const GUEST_HELLO_PORT = 'warren.hello'
export const GUEST_HELLO_NONCE = /^[0-9a-f]{32}$/
/** The guest responds within milliseconds, but needs 400 ms to detect that its own queue is broken. */
export const GUEST_HELLO_TIMEOUT_MS = 1_000

export const guestHello = (nonce: string): string => `WARREN1 ${nonce}\n`
export const guestHelloReply = (nonce: string): string => `WARREN1 ${nonce} OK\n`

export const GuestFailure = Type.Object({
  code: Type.String({
    description:
      'invalid, too_large, not_found, file_not_found, invalid_path, not_writable, no_space, identity_failed, internal; more in guest-processes.ts and guest-streams.ts',
  }),
  message: Type.String(),
  oldest_available_seq: Type.Optional(Type.Integer({ description: 'Present only with output_offset_expired.' })),
})
export type GuestFailure = Static<typeof GuestFailure>

/**
 * What a guest agent can do, counted up with each ability that the host must know of before it uses it. It is part of every
 * saved sandbox, because the host decides some of it before the guest runs: a paused sandbox keeps the agent it was saved
 * with. Agents that report no number count as the first.
 */
export const GUEST_PROTOCOL = {
  FIRST: 1,
  /** `address` in the identity: the guest has the address of its sandbox. */
  OWN_ADDRESS: 2,
  /** Steps of a build as managed processes; /folders, /freeze, /thaw and /pack. */
  BUILDS: 3,
  /** Disks: /mounts. */
  DISKS: 4,
  /** Disks at any path, and mounts that report what is unsaved, conflicts, and whether conditions are honoured. */
  MOUNT_DETAILS: 5,
  /** What the agent of this version reports (PROTOCOL in guest-agent/src/ready.rs). */
  CURRENT: 5,
} as const

export const GuestAgentInfo = Type.Object({
  protocol: Type.Integer({ minimum: 1, maximum: 1_000_000, description: 'See GUEST_PROTOCOL.' }),
  version: Type.Optional(
    Type.String({ pattern: '^[\\w.+-]{1,64}$', description: 'Absent until the agent has reported it.' }),
  ),
})
export type GuestAgentInfo = Static<typeof GuestAgentInfo>

export const GuestReady = Type.Object({
  agent_version: Type.String(),
  protocol: Type.Optional(GuestAgentInfo.properties.protocol),
  boot_id: Type.String({ description: 'The same in all clones of a boot.' }),
  uptime_ms: Type.Integer(),
  clocksource: Type.String({ description: '`tsc` or `kvm-clock`; other clock sources are slow.' }),
  process_trees: Type.Optional(
    Type.Enum(['cgroup', 'session'], {
      description:
        'How descendants are found. `session`, used without cgroup v2, misses those that created another session.',
    }),
  ),
})
export type GuestReady = Static<typeof GuestReady>

export const GuestClockBody = Type.Object({
  unix_ns: Type.String({
    pattern: '^[0-9]{1,19}$',
    description: 'Decimal digits as text, because a JSON number would lose precision.',
  }),
})
export type GuestClockBody = Static<typeof GuestClockBody>

export const GuestClockResponse = Type.Object({
  corrected_ms: Type.Number({ description: 'By how much the clock was changed.' }),
})
export type GuestClockResponse = Static<typeof GuestClockResponse>

export const GuestEntropyResponse = Type.Object({ added_bytes: Type.Integer(), reseeded: Type.Boolean() })
export type GuestEntropyResponse = Static<typeof GuestEntropyResponse>

/** Absent fields are left unchanged. */
export const GuestIdentityBody = Type.Object({
  address: Type.Optional(
    Type.String({
      format: 'ipv4',
      description:
        'Replaces the address that the host gave before. Ignored by agents before GUEST_PROTOCOL.OWN_ADDRESS.',
    }),
  ),
  hostname: Type.Optional(Type.String({ pattern: '^[A-Za-z0-9.-]{1,63}$' })),
  machine_id: Type.Optional(Type.String({ pattern: '^[0-9a-f]{32}$' })),
  envs: Type.Optional(
    Type.Record(Type.String(), Type.String(), {
      description: 'Replaces all variables. They are held in memory and passed to every exec.',
    }),
  ),
  ssh_pubkeys: Type.Optional(
    Type.Array(Type.String(), {
      description: "Replaces the keys of Warren in root's authorized_keys. Lines that the user added are retained.",
    }),
  ),
  renew_ssh_host_keys: Type.Optional(
    Type.Boolean({ description: 'Deletes /etc/ssh/ssh_host_*. New keys are generated when sshd is first started.' }),
  ),
  mtu: Type.Optional(Type.Integer({ minimum: 576, maximum: 65_535 })),
  nameserver: Type.Optional(Type.String({ description: 'Becomes the only nameserver in /etc/resolv.conf.' })),
  hosts: Type.Optional(
    Type.Array(Type.Object({ ip: Type.String(), names: Type.Array(Type.String(), { minItems: 1 }) }), {
      description:
        'Replaces the block of Warren in /etc/hosts, which always contains the host name, at the address of the sandbox.',
    }),
  ),
  ca_certificates: Type.Optional(
    Type.Array(Type.String(), {
      description: "Replaces the operator's certificates in the trust store. Each is one certificate in PEM format.",
    }),
  ),
  default_envs: Type.Optional(
    Type.Record(Type.String(), Type.String(), {
      description: "Replaces the operator's variables. They are held in memory; those of `envs` override them.",
    }),
  ),
})
export type GuestIdentityBody = Static<typeof GuestIdentityBody>

export const GuestFolderBody = Type.Object({ path: Type.String(), mode: Type.Integer(), owner: GuestOwner })
export type GuestFolderBody = Static<typeof GuestFolderBody>

export const GuestFrozen = Type.Object({
  used_bytes: Type.Integer({ minimum: 0, description: 'Used by files and by the filesystem itself.' }),
})
export type GuestFrozen = Static<typeof GuestFrozen>

/** `envs` become variables of everything that starts from the image. */
export const GuestPackBody = Type.Object({ envs: Type.Record(Type.String(), Type.String()) })
export type GuestPackBody = Static<typeof GuestPackBody>

/** The values that were set, read back from where programs find them. Fields that were not set are absent. */
export const GuestIdentityResponse = Type.Object({
  address: Type.Optional(Type.String()),
  hostname: Type.Optional(Type.String()),
  machine_id: Type.Optional(Type.String()),
  env_names: Type.Optional(Type.Array(Type.String())),
  ssh_pubkeys: Type.Optional(
    Type.Integer({ description: 'Number of all accepted keys, including those that the user added.' }),
  ),
  ssh_host_keys_left: Type.Optional(Type.Integer({ description: 'Number of remaining host keys; 0 after a renewal.' })),
  mtu: Type.Optional(Type.Integer()),
  nameserver: Type.Optional(Type.String()),
  hosts: Type.Optional(Type.Integer({ description: 'Number of lines in the block of Warren in /etc/hosts.' })),
  ca_certificates: Type.Optional(Type.Integer({ description: "Number of the operator's certificates." })),
  default_env_names: Type.Optional(Type.Array(Type.String())),
})
export type GuestIdentityResponse = Static<typeof GuestIdentityResponse>

export const GuestWakeBody = Type.Object({
  clock: Type.Optional(GuestClockBody),
  entropy: Type.Optional(Type.String({ pattern: '^([0-9a-f]{2}){32,512}$', description: 'Hexadecimal.' })),
  identity: Type.Optional(GuestIdentityBody),
})
export type GuestWakeBody = Static<typeof GuestWakeBody>

export const GuestWakeResponse = Type.Object({
  agent: Type.Optional(GuestAgentInfo),
  clock: Type.Optional(GuestClockResponse),
  entropy: Type.Optional(GuestEntropyResponse),
  identity: Type.Optional(GuestIdentityResponse),
})
export type GuestWakeResponse = Static<typeof GuestWakeResponse>

export const GuestUploadResponse = Type.Object({ bytes: Type.Integer() })
export type GuestUploadResponse = Static<typeof GuestUploadResponse>

const GuestCpu = Type.Object({
  busy_ms: Type.Integer({ description: 'Everything except idle and waiting for I/O.' }),
  idle_ms: Type.Integer(),
  iowait_ms: Type.Integer(),
  steal_ms: Type.Integer({ description: 'Time taken by the host, included in busy_ms.' }),
})

/** Counters since boot. */
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
    Type.Integer({ description: 'Wait until the guest sees a disk of this size, which takes about 0.1 s.' }),
  ),
})
export type GuestGrowBody = Static<typeof GuestGrowBody>

export const GuestGrowResponse = Type.Object({
  device_bytes: Type.Integer(),
  before_bytes: Type.Integer({ description: 'Size of the filesystem before.' }),
  after_bytes: Type.Integer(),
})
export type GuestGrowResponse = Static<typeof GuestGrowResponse>
