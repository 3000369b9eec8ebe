/**
 * What the control plane relies on of the mounts of a host (protocol/src/host-disks.ts), as tests. host-contract.ts says who
 * runs them. A host that cannot mount disks is held to refusing them.
 */
import assert from 'node:assert/strict'
import { after, before, suite, test } from 'node:test'
import {
  HOST_NETWORK_DEFAULT,
  type HostMount,
  type HostMountReport,
  type HostVmCreateBody,
  type HostVmMounts,
  type HostVmResumeBody,
  newId,
} from '@warren/protocol'
import type { ContractHost } from './host-contract.ts'
import { HostContractClient } from './host-contract-client.ts'
import { scaleLimit } from './slowness.ts'
import { until } from './until.ts'

const LIMIT_MS = scaleLimit(120_000)

export function testHostDiskContract(host: ContractHost): void {
  const client = new HostContractClient(host.socket)
  after(() => client.close())
  const { call, codeOf } = { call: client.call.bind(client), codeOf: client.codeOf.bind(client) }
  const ids = new Set<string>()
  const deleteAll = async (): Promise<void> => {
    for (const id of ids) await call('deleteVm', { id }, { fence: 1_000_000 })
    ids.clear()
  }

  const newVmId = (): string => {
    const id = newId('sandbox')
    ids.add(id)
    return id
  }
  const createBody = (mounts?: HostVmMounts): HostVmCreateBody => ({
    ...{ id: newVmId(), fence: 2, vcpu: 1, mem_mib: 1024, cpu_quota_pct: 100, disk_mib: 10_240 },
    ...{ image: host.image, ip: host.newAddress(), hostname: 'contract', envs: {}, ssh_pubkeys: [] },
    ...{ network: HOST_NETWORK_DEFAULT, limit_ms: LIMIT_MS, ...(mounts ? { mounts } : {}) },
  })
  const resumeBody = (fence: number, mounts?: HostVmMounts): HostVmResumeBody => ({
    ...{ fence, cpu_quota_pct: 100, ip: host.newAddress(), hostname: 'contract', envs: {}, ssh_pubkeys: [] },
    ...{ network: HOST_NETWORK_DEFAULT, limit_ms: LIMIT_MS, ...(mounts ? { mounts } : {}) },
  })
  const createVm = async (mounts?: HostVmMounts): Promise<string> => {
    const body = createBody(mounts)
    const { status, body: created } = await call('createVm', {}, body)
    assert.equal(status, 200, JSON.stringify(created))
    return body.id
  }
  const mountAt = (mount_path: string, more: Partial<HostMount> = {}): HostMount => {
    const { wrongCredentials: _, ...bucket } = host.disk ?? EXAMPLE_DISK
    return { id: newId('mount'), revision: 1, mount_path, read_only: false, sub_path: '', ...bucket, ...more }
  }
  const set = (id: string, revision: number, mounts: HostMount[], fence = 2) =>
    call('setVmMounts', { id }, { fence, revision, mounts })
  const findReport = async (id: string, mount: HostMount): Promise<HostMountReport | undefined> =>
    (await call('getVmMounts', { id })).body.mounts.find((report: HostMountReport) => report.id === mount.id)
  const waitFor = (id: string, mount: HostMount, status: HostMountReport['status']): Promise<HostMountReport> =>
    until(
      async () => {
        const report = await findReport(id, mount)
        return report?.status === status && report.revision === mount.revision && report
      },
      `${mount.mount_path} is ${status}`,
      LIMIT_MS,
    )
  const findListed = async (id: string) =>
    (await call('listMounts')).body.vms.find((vm: { id: string }) => vm.id === id)

  if (!host.disk) {
    suite('a host that cannot mount disks', () => {
      after(deleteAll)

      test('says so, creates VMs without their mounts, and accepts none', async () => {
        const id = await createVm({ revision: 3, mounts: [mountAt('/mnt/data')] })

        assert.equal((await call('getHost')).body.disks, false)
        assert.equal((await set(id, 4, [mountAt('/mnt/data')])).body.code, 'disks_unavailable')
        assert.deepEqual((await set(id, 4, [])).body.removed, [])
        assert.deepEqual((await call('getVmMounts', { id })).body.mounts, [])
        assert.equal((await set(id, 5, [], 1)).body.code, 'fence_lost')
      })
    })
    return
  }
  const { wrongCredentials } = host.disk

  suite('the mounts of a VM that does not run', () => {
    after(deleteAll)

    test('are not found if the host does not have the VM', async () => {
      const id = newId('sandbox')

      assert.equal((await call('getHost')).body.disks, true)
      assert.equal((await set(id, 1, [])).body.code, 'not_found')
      assert.equal(await codeOf('getVmMounts', { id }), 'not_found')
      assert.equal(await findListed(id), undefined)
    })

    test('do not exist, and a resume brings those back that it names', async () => {
      const [kept, left] = [mountAt('/mnt/kept'), mountAt('/mnt/left')]
      const id = await createVm({ revision: 4, mounts: [kept, left] })
      await waitFor(id, kept, 'mounted')
      assert.equal(await codeOf('pauseVm', { id }, { fence: 3, limit_ms: LIMIT_MS }), 200)

      assert.equal((await set(id, 5, [kept], 3)).body.code, 'wrong_state')
      assert.equal((await set(id, 5, [kept], 2)).body.code, 'fence_lost')
      assert.equal(await codeOf('getVmMounts', { id }), 'wrong_state')
      assert.equal(await findListed(id), undefined)

      assert.equal(await codeOf('resumeVm', { id }, resumeBody(4, { revision: 5, mounts: [kept] })), 200)
      await waitFor(id, kept, 'mounted')
      assert.equal((await findListed(id)).revision, 5)
      assert.equal(await findReport(id, left), undefined)
    })

    test('are not those of a fork', async () => {
      const mount = mountAt('/mnt/data')
      const id = await createVm({ revision: 2, mounts: [mount] })
      await waitFor(id, mount, 'mounted')
      const child = { id: newVmId(), fence: 3 }

      assert.equal(await codeOf('forkVm', { id }, { live: true, children: [child] }), 200)
      assert.equal(await codeOf('resumeVm', { id: child.id }, resumeBody(4)), 200)

      assert.deepEqual((await call('getVmMounts', { id: child.id })).body.mounts, [])
      assert.equal((await findReport(id, mount))?.status, 'mounted')
    })

    test('are gone when its VMM exits', async () => {
      const mount = mountAt('/mnt/data')
      const id = await createVm({ revision: 2, mounts: [mount] })
      await host.killVm(id)
      await until(async () => (await client.findVm(id))?.state === 'dead', 'the VM is dead')

      assert.equal(await findListed(id), undefined)
      assert.equal((await set(id, 3, [mount])).body.code, 'wrong_state')
      assert.equal(await codeOf('deleteVm', { id }, { fence: 3 }), 200)
      assert.equal(await findListed(id), undefined)
    })
  })

  suite('the mounts of a running VM', () => {
    after(deleteAll)
    let id: string
    const one = mountAt('/mnt/one', { read_only: true })
    const two = mountAt('/mnt/two', { sub_path: 'below', credentials: wrongCredentials })
    before(async () => {
      id = await createVm()
    })

    test('are none at first', async () => {
      assert.deepEqual((await call('getVmMounts', { id })).body.mounts, [])
    })

    test('become mounted, or failed with the reason, each for itself', async () => {
      const { status, body } = await set(id, 3, [one, two])

      assert.deepEqual([status, body.revision, body.removed, body.mounts.length], [200, 3, [], 2])
      assert.equal((await waitFor(id, one, 'mounted')).mount_error, undefined)
      assert.ok((await waitFor(id, two, 'failed')).mount_error)
      const listed = await findListed(id)
      assert.deepEqual([listed.revision, listed.mounts.length], [3, 2])
    })

    test('stay as they are when they are sent again, or when older ones arrive late', async () => {
      assert.equal((await set(id, 3, [one, two])).body.revision, 3)
      const late = await set(id, 2, [])

      assert.deepEqual([late.status, late.body.revision, late.body.removed], [200, 3, []])
      const statuses = [await findReport(id, one), await findReport(id, two)].map((report) => report?.status)
      assert.deepEqual(statuses, ['mounted', 'failed'])
      assert.equal((await set(id, 9, [], 1)).body.code, 'fence_lost')
      // It is not an operation with a fence.
      assert.equal((await set(id, 4, [one, two], 9)).status, 200)
      assert.equal((await client.findVm(id))?.fence, 2)
    })

    test('get new credentials without being unmounted, and one that has failed is tried again', async () => {
      const rotated = [
        { ...one, revision: 2 },
        { ...two, revision: 2, credentials: host.disk!.credentials },
      ]

      const { body } = await set(id, 5, rotated)

      const [first] = body.mounts as HostMountReport[]
      assert.deepEqual([first?.revision, body.removed], [2, []])
      // `pending` until the store has answered with the new credentials.
      assert.ok(first?.status !== 'failed')
      for (const mount of rotated) await waitFor(id, mount, 'mounted')
    })

    test('show no status of before when credentials become wrong', async () => {
      const wrong = { ...one, revision: 3, credentials: wrongCredentials }

      const { body } = await set(id, 6, [wrong, { ...two, revision: 2, credentials: host.disk!.credentials }])

      assert.notEqual((body.mounts as HostMountReport[])[0]?.status, 'mounted')
      assert.ok((await waitFor(id, wrong, 'failed')).mount_error)
      const right = { ...one, revision: 4 }
      await set(id, 7, [right, { ...two, revision: 2, credentials: host.disk!.credentials }])
      await waitFor(id, right, 'mounted')
    })

    test('are removed when they are no longer listed', async () => {
      const { body } = await set(id, 8, [{ ...one, revision: 4 }])
      const again = await set(id, 8, [{ ...one, revision: 4 }])

      assert.deepEqual([body.mounts.length, body.removed], [1, [{ id: two.id }]])
      assert.deepEqual([again.body.mounts, again.body.removed], [body.mounts, []])
      assert.deepEqual((await set(id, 9, [])).body.removed, [{ id: one.id }])
      assert.deepEqual((await call('getVmMounts', { id })).body, { revision: 9, mounts: [] })
    })

    test('do not make a create fail', async () => {
      const mount = mountAt('/mnt/data', { credentials: wrongCredentials })
      const created = await createVm({ revision: 8, mounts: [mount] })

      await waitFor(created, mount, 'failed')
      assert.equal((await findListed(created)).revision, 8)
    })

    test('are refused if they are not valid', async () => {
      const invalid = [
        { ...mountAt('/mnt/data'), id: 'mnt_short' },
        { ...mountAt('/mnt/data'), credentials: {} },
      ]

      for (const mount of invalid) assert.equal((await set(id, 11, [mount as HostMount])).body.code, 'invalid')
    })
  })
}

/** For a host that must not mount it. */
const EXAMPLE_DISK = {
  endpoint: 'https://store.example.com',
  region: 'auto',
  bucket: 'data',
  use_path_style: true,
  allow_loopback: false,
  credentials: { access_key: 'key', secret_key: 'secret' },
  wrongCredentials: { access_key: 'key', secret_key: 'other' },
}
