/**
 * The shell, tunnels and self-signals as the guest agent serves them.
 *
 *   POST /shell            shell frames → 200, raw bytes of the terminal
 *   POST /tunnel?port=N    raw bytes → 200, raw bytes
 *   GET  /signals          → 200, NDJSON of GuestSignal, open while the host listens
 *   POST /signals/ack      GuestSignalAck → {}
 *
 * SHELL. The request body is exactly what a client of the API sends (shell-frames.ts), so the bytes are relayed
 * unparsed. The terminal starts with 24 rows and 80 columns, before the first frame. The response ends when the
 * shell has exited and its output is sent. An invalid frame resets the stream. The end of the request body types Ctrl-D,
 * once per second until the shell has exited. A reset, or the end of the session, closes the terminal: SIGHUP, then
 * SIGKILL for a shell that still runs after 2 s; programs started with nohup or setsid keep running, as after ssh. If no
 * shell can be started: 502 `shell_failed`.
 *
 * TUNNEL. The response head is sent when the connection is established: to 127.0.0.1, if refused to ::1, if refused to
 * the external address of the guest. If all refuse: 502 `connect_refused`; after 10 s: 502 `connect_timeout`. Bytes that
 * the caller sends earlier wait. END_STREAM in either direction corresponds to shutdown(SHUT_WR) and leaves the other
 * direction open; a reset on one side resets the other. The flow control of the stream is the back-pressure. Port 1029
 * is refused because self-signals are accepted only from inside.
 *
 * SSH is a tunnel to port 22. If nothing listens there, the agent runs `sshd -i` for this connection, and first
 * generates an ed25519 host key if there is no host key. If the image has no sshd: 502 `no_ssh_server`.
 *
 * SIGNALS. The host keeps GET /signals open as long as the session; the response head is sent at once. The guest stores
 * at most one signal until it is acknowledged, also across sessions: a delete takes precedence over a pause, and a newer
 * signal replaces an older one of its kind. The next line is sent only after the previous one is acknowledged, so a
 * flood inside the guest causes none outside. The host acknowledges when it is certain to act and before it stops the
 * VM. POST /wake drops a pending pause, because the VM has been paused meanwhile; with `renew_ssh_host_keys` it also
 * drops a pending delete, because the VM is now a fork. An `id` other than the pending one is acknowledged too, since
 * there is nothing left to do.
 */
import { type Static, Type } from 'typebox'
import { SelfAction } from './self-signal.ts'

export const GuestSignal = Type.Object({
  id: Type.Integer({
    minimum: 1,
    description: 'Increases with each signal of a VM. A fork continues from the number of its source.',
  }),
  action: SelfAction,
  reason: Type.Optional(Type.String({ description: 'Text of the guest; apply sanitizeSelfReason before using it.' })),
})
export type GuestSignal = Static<typeof GuestSignal>

/** Limit of one line of GET /signals, far above what the guest agent sends. */
export const GUEST_SIGNAL_MAX_BYTES = 4096

export const GuestSignalAck = Type.Object({ id: Type.Integer({ minimum: 1 }) })
export type GuestSignalAck = Static<typeof GuestSignalAck>

/** Codes of GuestFailure with status 502. */
export const GUEST_STREAM_FAILURES = ['shell_failed', 'connect_refused', 'connect_timeout', 'no_ssh_server'] as const
export type GuestStreamFailure = (typeof GUEST_STREAM_FAILURES)[number]
