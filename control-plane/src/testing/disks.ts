/** Disks for tests: a server that passes for an S3 store, and the routes as functions. Probes of real stores: disks/probe.test.ts. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { DiskAttachmentView, DiskView, MountStatus } from '@warren/protocol'
import type { TestUser } from './app.ts'
import type { HostedApp } from './with-host.ts'

/** The store knows every bucket, and refuses this access key. */
export const UNKNOWN_KEY = 'unknown'

/** For `config` of a test app: stores of tests are on loopback. */
export const STORE_CONFIG = { diskPrivateCidrs: ['127.0.0.0/8'] }

export type TestStore = { endpoint: string; requests: IncomingMessage[]; beforeAnswer?: () => Promise<void> | void }

export async function startStore(): Promise<TestStore> {
  const store: TestStore = { endpoint: '', requests: [] }
  const server = createServer(async (request, response) => {
    store.requests.push(request)
    await store.beforeAnswer?.()
    const isKnown = !request.headers.authorization?.includes(`Credential=${UNKNOWN_KEY}/`)
    response.writeHead(isKnown ? 200 : 403)
    response.end(isKnown ? '' : '<Error><Code>InvalidAccessKeyId</Code></Error>')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  store.endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return store
}

let disks = 0

export function diskApi({ send, get }: Pick<HostedApp, 'send' | 'get'>, store: TestStore) {
  const body = (more: object = {}) => ({
    name: `disk-${++disks}`,
    kind: 's3',
    config: { bucket: 'data', endpoint: store.endpoint },
    credentials: { access_key: 'key', secret_key: 'a-secret-key' },
    ...more,
  })
  const list = async (who: TestUser, id: string): Promise<DiskAttachmentView[]> =>
    (await get(`/v1/sandboxes/${id}/disks`, who.key)).body.data.data
  return {
    body,
    list,
    async register(who: TestUser, more: object = {}): Promise<DiskView> {
      const { status, body: created } = await send('POST', '/v1/disks', who, body(more))
      assert.equal(status, 200, JSON.stringify(created))
      return created.data
    },
    rotate: (who: TestUser, disk: string, secret_key: string, access_key = 'key') =>
      send('PATCH', `/v1/disks/${disk}`, who, { credentials: { access_key, secret_key } }),
    remove: (who: TestUser, disk: string) => send('DELETE', `/v1/disks/${disk}`, who),
    attach: (who: TestUser, id: string, disk_id: string, mount_path = '/mnt/data', more: object = {}) =>
      send('POST', `/v1/sandboxes/${id}/disks`, who, { disk_id, mount_path, ...more }),
    detach: (who: TestUser, id: string, disk: string, path = '/mnt/data') =>
      send('DELETE', `/v1/sandboxes/${id}/disks/${disk}?mount_path=${encodeURIComponent(path)}`, who),
    waitForMount: (who: TestUser, id: string, status: MountStatus, path = '/mnt/data'): Promise<DiskAttachmentView> =>
      until(
        async () => (await list(who, id)).find((one) => one.mount_path === path && one.mount_status === status),
        `${path} of ${id} is ${status}`,
      ),
  }
}
