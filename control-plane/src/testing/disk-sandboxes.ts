/** An app with a host and a store, and one owner whose sandboxes have disks. */
import assert from 'node:assert/strict'
import { until } from '@warren/kit/testing/until'
import { diskApi, STORE_CONFIG, startStore } from './disks.ts'
import { createHostedApp } from './with-host.ts'

export async function createDiskSandboxes() {
  const hosted = await createHostedApp({ host: { memMib: 10_000_000 }, config: STORE_CONFIG })
  const { deps, host, user, create, send, get } = hosted
  const owner = await user({ plan: 'local' })
  const waitForStatus = (id: string, status: string) =>
    until(async () => (await get(`/v1/sandboxes/${id}`, owner.key)).body.data.status === status)
  return {
    ...hosted,
    ...diskApi(hosted, await startStore()),
    owner,
    waitForStatus,
    async newSandbox(body = {}): Promise<string> {
      const { status, body: created } = await create(owner, body)
      assert.equal(status, 200, JSON.stringify(created))
      return created.data.id
    },
    async pause(id: string): Promise<void> {
      await send('POST', `/v1/sandboxes/${id}/pause`, owner)
      await waitForStatus(id, 'paused')
    },
    async resume(id: string): Promise<void> {
      await send('POST', `/v1/sandboxes/${id}/resume`, owner)
      await waitForStatus(id, 'running')
    },
    /** Returns when a heartbeat has said it, so that no test after this one gets the earlier answer. */
    async setHostDisks(disks: boolean): Promise<void> {
      host.disks = disks
      await until(async () => {
        const row = await deps.db.selectFrom('hosts').select('disks').executeTakeFirstOrThrow()
        return row.disks === disks
      }, `the heartbeat says disks: ${disks}`)
    },
    /** The mounts that the host of a sandbox has, with their credentials. */
    wantedBy: (id: string) => host.vms.get(id)!.mounts.wanted,
  }
}
