/**
 * The shell, tunnels and self-signals, as the guest's agent serves them (spec 4.11, 4.15; wire 13, 17).
 *
 *   POST /shell            shell frames → 200, raw bytes of the terminal
 *   POST /tunnel?port=N    raw bytes → 200, raw bytes
 *   GET  /signals          → 200, NDJSON of GuestSignal, as long as the host listens
 *   POST /signals/ack      GuestSignalAck → {}
 *
 * SHELL. The body is exactly what a client of spec 4.11 sends (shell-frames.ts): the bytes may be passed on unread.
 * It begins at 24 rows and 80 columns, also before the first frame has come. The answer ends when the shell has ended
 * and its output is sent; a frame that cannot be understood is answered by a reset. The end of the body types Ctrl-D,
 * once a second until the shell has ended. A reset, or the end of the session, hangs up the terminal: SIGHUP, and
 * SIGKILL for a shell that is still there after 2 s; what was started with nohup or setsid lives on, as after ssh.
 * 502 `shell_failed` when no shell can be started.
 *
 * TUNNEL. The head of the answer comes when the connection stands: to 127.0.0.1, or if that refuses to ::1, or else to
 * the external address of the guest. 502 `connect_refused` when all refuse, 502 `connect_timeout` after 10 s. Bytes
 * that the caller sends before the answer wait. END_STREAM in either direction is a shutdown(SHUT_WR) or comes of one,
 * the other direction goes on; a reset in either is a reset of the other. Flow control of the stream is the
 * back-pressure. Port 1029 is refused: self-signals come only from inside.
 *
 * SSH is a tunnel to port 22. When nothing listens there the agent runs `sshd -i` on that one connection, and makes an
 * ed25519 host key first if there is no key at all. An image without sshd: 502 `no_ssh_server`.
 *
 * SIGNALS. Open GET /signals as long as the session lives; the head comes at once. What a user asked for is kept until
 * acknowledged, also while no host listens and over sessions, at most one: a delete outranks a pause, a newer one
 * replaces an older of its kind. The next line comes only when the one before is acknowledged, so a flood inside makes
 * none outside. Acknowledge when the host has made sure that it will act, and before the machine is stopped: a POST
 * /wake forgets a pending pause (it has been paused since), and one whose identity says `renew_ssh_host_keys` (it has
 * become another machine) forgets a pending delete too. An `id` that is not the pending one is acknowledged as well:
 * there is nothing left to do.
 */
import { type Static, Type } from 'typebox'
import { SelfAction } from './self-signal.ts'

export const GuestSignal = Type.Object({
  id: Type.Integer({ minimum: 1, description: 'Rises with each signal of a machine; forks begin where it was.' }),
  action: SelfAction,
  reason: Type.Optional(Type.String({ description: 'The words of the guest: clean them with cleanSelfReason.' })),
})
export type GuestSignal = Static<typeof GuestSignal>

/** Of one line of GET /signals, far above what an honest guest sends. */
export const GUEST_SIGNAL_MAX_BYTES = 4096

export const GuestSignalAck = Type.Object({ id: Type.Integer({ minimum: 1 }) })
export type GuestSignalAck = Static<typeof GuestSignalAck>

/** Codes of GuestFailure with 502. */
export const GUEST_STREAM_FAILURES = ['shell_failed', 'connect_refused', 'connect_timeout', 'no_ssh_server'] as const
export type GuestStreamFailure = (typeof GUEST_STREAM_FAILURES)[number]
