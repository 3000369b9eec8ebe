/** The mounts that the proxy serves, with their credentials. They exist in memory only. */
import { chooseRegion, resolveS3Bucket, type S3Bucket } from '@warren/kit/s3/endpoint'
import type { S3Credentials } from '@warren/kit/s3/sign'
import { hashMountToken, MOUNT_TOKEN } from '../mount-token.ts'
import type { MountAnswer, S3ProxyMount, S3ProxyMounts } from '../s3-proxy-protocol.ts'
import { S3ProxyError } from './error.ts'
import { findKeyFault } from './key.ts'

export type Mount = {
  id: string
  revision: number
  sandboxIp: string
  tokenHash: string
  bucketName: string
  bucket: S3Bucket
  /** In front of every key: empty, or it ends with a slash. */
  prefix: string
  readOnly: boolean
  allowLoopback: boolean
  credentials: S3Credentials
  /** The region to sign for. With `auto` it changes when the server names another one. */
  region: string
  isRegionFixed: boolean
  pageKey: Buffer
  /** Requests that are being served; aborting one ends it. */
  open: Set<AbortController>
  /** What was reported of its store for this revision. */
  reported: { ok: boolean; failed: boolean }
}

export class Mounts {
  readonly #byId = new Map<string, Mount>()
  readonly #byTokenHash = new Map<string, Mount>()
  readonly #onAnswer: (answer: MountAnswer) => void

  constructor(onAnswer: (answer: MountAnswer) => void) {
    this.#onAnswer = onAnswer
  }

  get size(): number {
    return this.#byId.size
  }

  /** All or none: throws before anything changes if one cannot work. */
  set({ pageKey, mounts }: S3ProxyMounts): void {
    const parsed = mounts.map((mount) => parseMount(mount, Buffer.from(pageKey, 'hex')))
    for (const mount of parsed) {
      const old = this.#byId.get(mount.id)
      if (old !== undefined) this.#byTokenHash.delete(old.tokenHash)
      // Requests that were signed with the old credentials may end; those of another place may not.
      if (old !== undefined && isSamePlace(old, mount)) {
        mount.open = old.open
        if (mount.revision === old.revision) mount.reported = old.reported
        if (!mount.isRegionFixed && !old.isRegionFixed) mount.region = old.region
      } else abortAll(old)
      this.#byId.set(mount.id, mount)
      this.#byTokenHash.set(mount.tokenHash, mount)
    }
  }

  remove(id: string): void {
    const mount = this.#byId.get(id)
    if (mount === undefined) return
    this.#byId.delete(id)
    this.#byTokenHash.delete(mount.tokenHash)
    abortAll(mount)
  }

  /** The store behind the mount answered a request, or did not. One that was sent before the mount was changed says nothing. */
  reportAnswer(mount: Mount, ok: boolean): void {
    const kind = ok ? 'ok' : 'failed'
    if (this.#byId.get(mount.id) !== mount || mount.reported[kind]) return
    mount.reported[kind] = true
    this.#onAnswer({ id: mount.id, revision: mount.revision, ok })
  }

  hasSandbox(ip: string): boolean {
    return this.#byId.values().some((mount) => mount.sandboxIp === ip)
  }

  /** The same error in all cases: a guest learns nothing about mounts of others. */
  authenticate(ip: string, authorization: string | undefined): Mount {
    const token = /^Bearer (.*)$/.exec(authorization ?? '')?.[1] ?? ''
    const mount = MOUNT_TOKEN.test(token) ? this.#byTokenHash.get(hashMountToken(token)) : undefined
    if (mount === undefined || mount.sandboxIp !== ip) {
      throw new S3ProxyError(401, 'UnknownMount', 'the token is not valid for a mount of this sandbox')
    }
    return mount
  }
}

function parseMount(mount: S3ProxyMount, pageKey: Buffer): Mount {
  const { id, subPath, region } = mount
  const bucket = resolveS3Bucket(mount)
  // Empty segments are left as they are: the prefix is the user's choice, and not the guest's.
  const fault = subPath === '' ? undefined : findKeyFault(subPath.replace(/\/\/+/g, '/'))
  if (fault !== undefined || /^\/|\/$/.test(subPath))
    throw new Error(`the sub_path of mount ${id} ${fault ?? 'has a slash'}`)
  return {
    id,
    revision: mount.revision,
    sandboxIp: mount.sandboxIp,
    tokenHash: mount.tokenHash,
    bucketName: mount.bucket,
    bucket,
    prefix: subPath === '' ? '' : `${subPath}/`,
    readOnly: mount.readOnly,
    allowLoopback: mount.allowLoopback,
    credentials: mount.credentials,
    region: chooseRegion(region, bucket.endpoint),
    isRegionFixed: region !== 'auto' && region !== '',
    pageKey,
    open: new Set(),
    reported: { ok: false, failed: false },
  }
}

const isSamePlace = (one: Mount, other: Mount): boolean =>
  one.sandboxIp === other.sandboxIp &&
  one.tokenHash === other.tokenHash &&
  one.prefix === other.prefix &&
  one.bucket.host === other.bucket.host &&
  one.bucket.basePath === other.bucket.basePath &&
  one.bucket.endpoint.isSecure === other.bucket.endpoint.isSecure &&
  (one.readOnly || !other.readOnly)

function abortAll(mount: Mount | undefined): void {
  for (const controller of mount?.open ?? []) controller.abort(new Error('the mount was removed'))
}
