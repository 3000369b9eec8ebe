/**
 * The messages between the host agent and the S3 proxy, one JSON text per line (kit/src/json-lines.ts). The proxy parses what guests
 * send, so the host agent takes nothing from it that does not match a schema of this file.
 */
import { type Static, type TSchema, Type } from 'typebox'
import { type Method, RpcError, type RpcReply } from '../rpc/protocol.ts'

/** The descriptor of the socket to the host agent. */
export const CHANNEL_FD = 3
/** More than the counts of every operation and status. */
export const MESSAGE_MAX_BYTES = 1024 ** 2

/** Passed as the first argument of the process, so it has no secrets. */
export const S3ProxySettings = Type.Object({
  /** Only guests may reach it: the firewall of the host decides who can connect. */
  address: Type.String(),
  port: Type.Integer({ minimum: 0, maximum: 65_535 }),
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
      recoveryMs: Type.Optional(Type.Integer()),
    }),
  ),
})
export type S3ProxySettings = Static<typeof S3ProxySettings>

/** What the proxy must know about the machine and cannot read in its jail. It changes while the proxy runs. */
export const S3ProxyMachine = Type.Object({
  /** Name servers, each with its port, as `Resolver.setServers` takes them. */
  nameServers: Type.Array(Type.String()),
  /** The text of /etc/hosts. */
  hosts: Type.String(),
  /** Of all interfaces. */
  addresses: Type.Array(Type.String()),
})
export type S3ProxyMachine = Static<typeof S3ProxyMachine>

export const S3ProxyMount = Type.Object({
  id: Type.String({ minLength: 1 }),
  /** Rises with the credentials, and when the mount is to be tried again. Answers are reported with it. */
  revision: Type.Integer({ minimum: 0 }),
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

const strict = { additionalProperties: false }
const Count = Type.Integer({ minimum: 0 })

/** Upper bounds of the buckets in which the times of servers are counted, in seconds. */
export const LATENCY_BOUNDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]

/**
 * Counted since the process started; `mounts`, `connections` and `inFlight` are current. `latency` has a count for each of
 * LATENCY_BOUNDS and one for what took longer.
 */
export const S3ProxyCounts = Type.Object(
  {
    mounts: Count,
    connections: Count,
    inFlight: Count,
    requests: Type.Array(
      Type.Object({ operation: Type.String({ maxLength: 32 }), status: Count, count: Count }, strict),
      { maxItems: 1_000 },
    ),
    bytes: Type.Object({ fromGuests: Count, toGuests: Count }, strict),
    latency: Type.Object(
      {
        counts: Type.Array(Count, { minItems: LATENCY_BOUNDS.length + 1, maxItems: LATENCY_BOUNDS.length + 1 }),
        sumSeconds: Type.Number({ minimum: 0 }),
      },
      strict,
    ),
  },
  strict,
)
export type S3ProxyCounts = Static<typeof S3ProxyCounts>

export type S3ProxyCalls = {
  setMachine: (machine: S3ProxyMachine) => null
  /** Adds mounts and replaces those with the same ids; new requests use the new credentials. The others are kept. */
  setMounts: (mounts: S3ProxyMounts) => null
  /** Begins to serve guests. Returns the port. */
  listen: () => { port: number }
  /** Ends their requests, and the connections of sandboxes without another mount. Ids that are unknown are ignored. */
  removeMounts: (mounts: { ids: string[] }) => null
  counts: () => S3ProxyCounts
}

export const S3_PROXY_RESULTS = {
  setMachine: Type.Null(),
  setMounts: Type.Null(),
  listen: Type.Object({ port: Type.Integer({ minimum: 1, maximum: 65_535 }) }, strict),
  removeMounts: Type.Null(),
  counts: S3ProxyCounts,
} satisfies Record<Method<S3ProxyCalls>, TSchema>

/**
 * Sent without a request, at most twice for a revision of a mount: the store behind it has answered for the first time (`ok`), or
 * has refused or not answered for the first time.
 */
export const S3ProxyNotice = Type.Object(
  { answered: Type.Object({ id: Type.String({ maxLength: 256 }), revision: Count, ok: Type.Boolean() }, strict) },
  strict,
)
export type S3ProxyNotice = Static<typeof S3ProxyNotice>
export type MountAnswer = S3ProxyNotice['answered']

/** Before everything else the process sends whether it has started. */
export const S3ProxyStart = Type.Union([Type.Object({ ready: Type.Literal(true) }), Type.Object({ failed: RpcError })])
export type S3ProxyStart = Static<typeof S3ProxyStart>
export type S3ProxyMessage = S3ProxyStart | S3ProxyNotice | RpcReply
