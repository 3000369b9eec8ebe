/** The messages between the host agent and the S3 proxy, as JSON over Node's channel. Both sides parse what they receive. */
import { type Static, Type } from 'typebox'
import type { RpcError, RpcReply } from '../rpc/protocol.ts'

/** Passed as the first argument of the process, so it has no secrets. */
export const S3ProxySettings = Type.Object({
  /** Only guests may reach it: the firewall of the host decides who can connect. */
  address: Type.String(),
  port: Type.Integer({ minimum: 0, maximum: 65_535 }),
  /** The user that the process switches to once its socket is open. Absent where the host agent is not root. */
  uid: Type.Optional(Type.Integer({ minimum: 1 })),
  /** Blocks of private addresses in which endpoints may be. */
  privateCidrs: Type.Array(Type.String()),
  /** Shorter times for tests. */
  deadlines: Type.Optional(
    Type.Object({
      headMs: Type.Optional(Type.Integer()),
      connectMs: Type.Optional(Type.Integer()),
      answerMs: Type.Optional(Type.Integer()),
      slowAnswerMs: Type.Optional(Type.Integer()),
      stallMs: Type.Optional(Type.Integer()),
      idleMs: Type.Optional(Type.Integer()),
    }),
  ),
})
export type S3ProxySettings = Static<typeof S3ProxySettings>

export const S3ProxyMount = Type.Object({
  id: Type.String({ minLength: 1 }),
  /** The only address from which the token is accepted. */
  sandboxIp: Type.String({ minLength: 1 }),
  /** SHA-256 of the token, in hex (createMountToken). */
  tokenHash: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  endpoint: Type.String(),
  region: Type.String(),
  bucket: Type.String(),
  /** Without slashes at either end. Empty for the whole bucket. */
  subPath: Type.String(),
  usePathStyle: Type.Boolean(),
  readOnly: Type.Boolean(),
  /** The endpoint may be on loopback. */
  allowLoopback: Type.Boolean(),
  credentials: Type.Object({ accessKey: Type.String({ minLength: 1 }), secretKey: Type.String({ minLength: 1 }) }),
})
export type S3ProxyMount = Static<typeof S3ProxyMount>

/** `pageKey` signs the tokens by which a guest continues a listing: 32 bytes in hex, the same as long as the host agent runs. */
export const S3ProxyMounts = Type.Object({
  pageKey: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  mounts: Type.Array(S3ProxyMount),
})
export type S3ProxyMounts = Static<typeof S3ProxyMounts>

/** Counted since the process started; `mounts`, `connections` and `inFlight` are current. */
export const S3ProxyCounts = Type.Object({
  mounts: Type.Integer(),
  connections: Type.Integer(),
  inFlight: Type.Integer(),
  requests: Type.Array(Type.Object({ operation: Type.String(), status: Type.Integer(), count: Type.Integer() })),
})
export type S3ProxyCounts = Static<typeof S3ProxyCounts>

export type S3ProxyCalls = {
  /** Adds mounts and replaces those with the same ids; new requests use the new credentials. The others are kept. */
  setMounts: (mounts: S3ProxyMounts) => null
  /** Ends their requests. Ids that are unknown are ignored. */
  removeMounts: (mounts: { ids: string[] }) => null
  counts: () => S3ProxyCounts
}

const ErrorMessage = Type.Object({ message: Type.String(), code: Type.Optional(Type.String()) })

/** Before the first reply the process sends whether its socket is open, and at which port. */
export const S3ProxyMessage = Type.Union([
  Type.Object({ ready: Type.Object({ port: Type.Integer() }) }),
  Type.Object({ failed: ErrorMessage }),
  Type.Object({ id: Type.Integer(), result: Type.Unknown() }),
  Type.Object({ id: Type.Integer(), error: ErrorMessage }),
])
export type S3ProxyMessage = { ready: { port: number } } | { failed: RpcError } | RpcReply
