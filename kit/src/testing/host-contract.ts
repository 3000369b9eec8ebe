/**
 * What the control plane relies on of a host, as tests: states, fences, repeated requests, failures and their codes. The
 * real host agent and the fake host of the control plane's tests both run it, so that what the control plane's tests prove
 * with the fake holds for the real one.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, before, suite, test } from 'node:test'
import {
  HOST_NETWORK_DEFAULT,
  type HostBase,
  type HostMount,
  type HostVmCreateBody,
  type HostVmNetwork,
  type HostVmResumeBody,
  newId,
} from '@warren/protocol'
import { checkFailure, HostContractClient } from './host-contract-client.ts'
import { scaleLimit } from './slowness.ts'
import { until } from './until.ts'

export type ContractHost = {
  socket: string
  /** Of an image that is ready. */
  image: string
  /** In the block of the host, and never returned before. */
  newAddress(): string
  /** The VMM of a running VM exits. */
  killVm(id: string): Promise<void> | void
  /** How long a VM takes to start on a quiet machine. */
  vmStartMs?: number
  /** A bucket that can be mounted, with credentials that its store accepts and others that it refuses. Absent if the host cannot mount disks. */
  disk?: Pick<HostMount, 'endpoint' | 'region' | 'bucket' | 'use_path_style' | 'allow_loopback' | 'credentials'> & {
    wrongCredentials: HostMount['credentials']
  }
}

/** A clone takes a second on an idle machine, a base that must be booted first half a minute. */
const LIMIT_MS = scaleLimit(120_000)
/** The size of the first base that a host agent prepares. */
/** No host has this much memory. */
const TOO_MUCH_MIB = 100_000_000
const SIZE = { vcpu: 1, mem_mib: 1024, cpu_quota_pct: 100, disk_mib: 10_240 }
const { disk_mib } = SIZE
/** The size to which a disk grows here. */
const GROWN_MIB = 11_264

export function testHostContract(host: ContractHost): void {
  const client = new HostContractClient(host.socket)
  after(() => client.close())
  const { call, codeOf } = { call: client.call.bind(client), codeOf: client.codeOf.bind(client) }

  const ids = new Set<string>()
  const newVmId = (): string => {
    const id = newId('sandbox')
    ids.add(id)
    return id
  }
  /** Also of VMs whose create failed. */
  const deleteAll = async (): Promise<void> => {
    for (const id of ids) await call('deleteVm', { id }, { fence: 1_000_000 })
    ids.clear()
  }

  const createBody = (more: Partial<HostVmCreateBody> = {}): HostVmCreateBody => ({
    ...{ id: newVmId(), fence: 1, ...SIZE, image: host.image, ip: host.newAddress(), hostname: 'contract' },
    ...{ envs: {}, ssh_pubkeys: [], network: HOST_NETWORK_DEFAULT, limit_ms: LIMIT_MS, ...more },
  })
  const baseBody = (more: object = {}) => {
    const { cpu_quota_pct: _, ...size } = SIZE
    return { image: host.image, ...size, ...more }
  }
  const resumeBody = (fence: number, more: Partial<HostVmResumeBody> = {}): HostVmResumeBody => ({
    ...{ fence, cpu_quota_pct: 100, ip: host.newAddress(), hostname: 'contract', envs: {}, ssh_pubkeys: [] },
    ...{ network: HOST_NETWORK_DEFAULT, limit_ms: LIMIT_MS, ...more },
  })
  const resizeBody = (fence: number, disk_mib: number) => ({ fence, disk_mib, limit_ms: LIMIT_MS })
  const pauseBody = (fence: number) => ({ fence, limit_ms: LIMIT_MS })
  const networkBody = (fence: number, more: Partial<HostVmNetwork> = {}) => ({
    fence,
    network: { ...HOST_NETWORK_DEFAULT, ...more },
  })
  const createVm = async (more: Partial<HostVmCreateBody> = {}): Promise<string> => {
    const body = createBody(more)
    const { status, body: created } = await call('createVm', {}, body)
    assert.equal(status, 200, JSON.stringify(created))
    return body.id
  }
  const children = (fence: number, count = 1) => Array.from({ length: count }, () => ({ id: newVmId(), fence }))
  const putFile = async (id: string, text: string) =>
    assert.equal((await client.guest(id, 'PUT', 'files?path=/root/note', text)).status, 200)
  const getFile = async (id: string) => (await client.guest(id, 'GET', 'files?path=/root/note')).bytes.toString()
  const findNetwork = async (id: string) =>
    (await call('listNetworks')).body.vms.find((vm: { id: string }) => vm.id === id)

  suite('a host without the VM', () => {
    after(deleteAll)
    test('lists its images and VMs', async () => {
      const { status, body } = await call('getHost')

      assert.equal(status, 200)
      assert.equal(body.images.find((image: { name: string }) => image.name === host.image).state, 'ready')
      assert.equal((await call('collectSnapshots')).status, 200)
    })

    test('reports metrics, with the number of VMs by state', async () => {
      const { status, body } = await call('getMetrics')

      assert.equal(status, 200)
      const { samples } = body.families.find((family: { name: string }) => family.name === 'warren_host_vms')
      assert.ok(samples.some(({ labels }: { labels: { state: string } }) => labels.state === 'running'))
    })

    test('refuses requests that match no route, or whose query or body is not valid', async () => {
      const { id, ...withoutId } = createBody()
      const requests: [string, string, string | undefined, string][] = [
        ['GET', '/v1/no-such-route', undefined, 'not_found'],
        ['PATCH', '/v1/vms', '{}', 'not_found'],
        ['POST', '/v1/vms', '{', 'invalid'],
        ['POST', '/v1/vms', JSON.stringify(withoutId), 'invalid'],
        ['POST', '/v1/vms', JSON.stringify({ ...withoutId, id: 'sb-short' }), 'invalid'],
        ['POST', `/v1/vms/${id}/pause`, JSON.stringify({ fence: 0, limit_ms: 1 }), 'invalid'],
        ['DELETE', `/v1/vms/${id}`, undefined, 'invalid'],
        ['DELETE', `/v1/vms/${id}?fence=no`, undefined, 'invalid'],
        ['POST', `/v1/vms/${id}/forks`, JSON.stringify({ children: [] }), 'invalid'],
        ['POST', `/v1/vms/${id}/ports/0`, '', 'invalid'],
        ['POST', `/v1/vms/${id}/ports/65536`, '', 'invalid'],
        ['POST', `/v1/vms/${id}/ports/http`, '', 'invalid'],
        ['POST', '/v1/bases', JSON.stringify({ image: host.image }), 'invalid'],
        ['POST', '/v1/bases', JSON.stringify({ ...baseBody(), vcpu: 0 }), 'invalid'],
        ['GET', `/v1/vms/${id}/guest/ready`, undefined, 'not_found'],
        ['GET', `/v1/vms/${id}/guest/no-such-route`, undefined, 'not_found'],
      ]
      for (const [method, path, text, code] of requests) {
        const response = await client.request(method, path, text)
        checkFailure(`${method} ${path}`, response)
        assert.equal(response.body.code, code, `${method} ${path}`)
      }
    })

    test('prepares a base once, and lists it', async () => {
      const first = await call('prepareBase', {}, baseBody())
      const [second, larger] = await Promise.all([
        call('prepareBase', {}, baseBody()),
        call('prepareBase', {}, baseBody({ disk_mib: SIZE.disk_mib + 1024 })),
      ])

      assert.equal(first.status, 200, JSON.stringify(first.body))
      for (const { body } of [second, larger]) {
        assert.deepEqual([body.key, body.booted], [first.body.key, false])
      }
      const { bases } = (await call('listBases')).body
      const { size_bytes, made_at, ...base } = bases.find(({ key }: { key: string }) => key === first.body.key)
      assert.deepEqual(base, { key: first.body.key, ...baseBody(), state: 'ready', vms: 0 })
      assert.ok(size_bytes > 0 && Date.parse(made_at) <= Date.now(), `${size_bytes} ${made_at}`)
    })

    test('prepares no base without its image, on a disk that is too small, or with more memory than it has', async () => {
      // The host may prepare bases of common shapes meanwhile.
      const listImpossible = async () => {
        const { bases } = (await call('listBases')).body
        return bases.filter(
          (base: HostBase) => base.image === 'none:1' || base.disk_mib < SIZE.disk_mib || base.mem_mib === TOO_MUCH_MIB,
        )
      }

      assert.equal(await codeOf('prepareBase', {}, baseBody({ image: 'none:1' })), 'image_not_ready')
      assert.equal(await codeOf('prepareBase', {}, baseBody({ disk_mib: 1 })), 'disk_too_small')
      assert.equal(await codeOf('prepareBase', {}, baseBody({ mem_mib: TOO_MUCH_MIB })), 'no_capacity')

      assert.deepEqual(await listImpossible(), [])
    })

    test('does not find it, and takes no fence from such a request', async () => {
      const id = newId('sandbox')

      assert.deepEqual(
        [
          await codeOf('pauseVm', { id }, pauseBody(50)),
          await codeOf('resumeVm', { id }, resumeBody(50)),
          await codeOf('forkVm', { id }, { children: children(50) }),
          await codeOf('resizeVm', { id }, resizeBody(50, GROWN_MIB)),
          await codeOf('setVmNetwork', { id }, networkBody(50)),
          await codeOf('getVmNetwork', { id }),
          await codeOf('getVmMetrics', { id }),
          await codeOf('getVmSeries', { id }),
          (await client.request('POST', `/v1/vms/${id}/ports/80`, '')).body.code,
          (await client.request('GET', `/v1/vms/${id}/guest/files?path=/etc/hostname`)).body.code,
        ],
        Array(10).fill('not_found'),
      )
      // Whether the image exists is checked after the fence.
      assert.equal(await codeOf('createVm', {}, createBody({ id, image: 'none:1' })), 'image_not_ready')
    })

    test('deletes it all the same, and then refuses a create that was overtaken', async () => {
      const id = newId('sandbox')

      assert.equal(await codeOf('deleteVm', { id }, { fence: 5 }), 200)

      for (const fence of [4, 5]) assert.equal(await codeOf('createVm', {}, createBody({ id, fence })), 'fence_lost')
      assert.equal(await codeOf('pauseVm', { id }, pauseBody(4)), 'not_found')
      assert.equal(await codeOf('createVm', {}, createBody({ id, fence: 6, image: 'none:1' })), 'image_not_ready')
    })

    test('does not create it without its image or on a disk that is too small, and forgets the attempt', async () => {
      const body = createBody()

      assert.equal(await codeOf('createVm', {}, { ...body, image: 'none:1' }), 'image_not_ready')
      assert.equal(await codeOf('createVm', {}, { ...body, disk_mib: 1 }), 'disk_too_small')

      assert.equal(await client.findVm(body.id), undefined)
      assert.equal(await codeOf('createVm', {}, { ...body, disk_mib: 1 }), 'disk_too_small')
    })
  })

  suite('a running VM', () => {
    after(deleteAll)
    let id: string
    let ip: string
    before(async () => {
      ip = host.newAddress()
      const bandwidth = { ...HOST_NETWORK_DEFAULT.bandwidth, used_bytes: 1000, ingress_bytes: 2000 }
      const network = { ...HOST_NETWORK_DEFAULT, revision: 3, bandwidth }
      id = await createVm({ ip, fence: 2, envs: { GIVEN: 'from the host' }, network })
    })

    test('is listed with its fence and without a generation', async () => {
      assert.deepEqual(await client.findVm(id), { id, fence: 2, state: 'running', disk_mib })
    })

    test('is not created again, whatever the fence, and its address is not given away', async () => {
      for (const fence of [1, 2, 3]) assert.equal(await codeOf('createVm', {}, createBody({ id, fence })), 'fence_lost')

      const other = createBody({ ip })
      assert.equal(await codeOf('createVm', {}, other), 'boot_failed')
      assert.equal(await client.findVm(other.id), undefined)
      assert.deepEqual(await client.findVm(id), { id, fence: 2, state: 'running', disk_mib })
    })

    test('runs commands with its variables', async () => {
      const script = 'echo "$GIVEN"; echo problem >&2; exit 3'
      const result = await client.exec(id, { cmd: 'sh', args: ['-c', script] })
      const missing = await client.exec(id, { cmd: '/no/such/program' })

      assert.deepEqual(result, { stdout: 'from the host\n', stderr: 'problem\n', exit: { code: 3, timed_out: false } })
      assert.equal(missing.error?.kind, 'not_found')
    })

    test('stores files; what is wrong with a path is the error of the guest', async () => {
      await putFile(id, 'kept')
      assert.equal(await getFile(id), 'kept')

      const missing = await client.guest(id, 'GET', 'files?path=/root/missing')
      const folder = await client.guest(id, 'GET', 'files?path=/root')
      const codes = [missing, folder].map(({ status, bytes }) => [status, JSON.parse(bytes.toString()).code])
      assert.deepEqual(codes, [
        [404, 'file_not_found'],
        [400, 'invalid_path'],
      ])
    })

    test('keeps the newest revision of its network, and counts from what was given', async () => {
      assert.deepEqual((await call('setVmNetwork', { id }, networkBody(2, { revision: 7 }))).body, { revision: 7 })
      assert.deepEqual((await call('setVmNetwork', { id }, networkBody(2, { revision: 5 }))).body, { revision: 7 })
      assert.equal(await codeOf('setVmNetwork', { id }, networkBody(1, { revision: 9 })), 'fence_lost')
      // The fence orders operations; a change of the network is none and does not raise it.
      assert.equal(await codeOf('setVmNetwork', { id }, networkBody(9, { revision: 8 })), 200)

      const { body: report } = await call('getVmNetwork', { id })
      assert.deepEqual([report.revision, report.bandwidth.capped], [8, false])
      assert.equal(report.bandwidth.quota_bytes, HOST_NETWORK_DEFAULT.bandwidth.quota_bytes)
      const listed = await findNetwork(id)
      assert.equal(listed.revision, 8)
      assert.ok(listed.used_bytes >= 1000 && listed.ingress_bytes >= 2000, JSON.stringify(listed))
      assert.equal((await client.findVm(id))?.fence, 2)
    })

    test('is measured, and has samples after some time', async () => {
      const { body: measured } = await call('getVmMetrics', { id })
      const { points } = await until(async () => {
        const { body } = await call('getVmSeries', { id })
        return body.points.length > 0 && body
      }, 'the first sample of the VM')

      assert.ok(measured.memory_bytes > 0, JSON.stringify(measured))
      assert.ok(Math.abs(Date.parse(measured.at) - Date.now()) < scaleLimit(60_000), measured.at)
      const [point] = points
      assert.ok(point.memory_bytes > 0 && point.memory_limit_bytes > 0 && point.storage_limit_bytes > 0)
    })

    test('is reached on a port where something listens, and only there', async () => {
      const port = 20_000 + Math.floor(Math.random() * 10_000)
      const closed = await client.request('POST', `/v1/vms/${id}/ports/${port}`, '')
      checkFailure('a closed port', closed)
      assert.equal(closed.body.code, 'port_closed')
      const server = client.openExec(id, { cmd: 'perl', args: ['-e', ECHO_PROGRAM, String(port)] })
      assert.equal((await server.frames.next()).value?.type, 'started')
      assert.equal((await server.frames.next()).value?.type, 'stdout')

      const stream = client.open('POST', `/v1/vms/${id}/ports/${port}`)
      const [headers] = await once(stream, 'response')
      stream.end('hello\n')
      let received = ''
      for await (const chunk of stream as AsyncIterable<Buffer>) received += chunk

      assert.deepEqual([headers[':status'], received], [200, 'echo hello\n'])
      server.stream.close(8)
    })

    test('is not resumed, and refuses a lower fence', async () => {
      assert.equal(await codeOf('resumeVm', { id }, resumeBody(9)), 'wrong_state')
      assert.equal(await codeOf('pauseVm', { id }, pauseBody(1)), 'fence_lost')
      assert.equal(await codeOf('resumeVm', { id }, resumeBody(1)), 'fence_lost')
      assert.equal(await codeOf('deleteVm', { id }, { fence: 1 }), 'fence_lost')
      assert.equal(await codeOf('forkVm', { id }, { children: children(1) }), 'snapshot_missing')

      // None of them counted as an operation.
      assert.deepEqual(await client.findVm(id), { id, fence: 2, state: 'running', disk_mib })
    })

    test('is deleted once, and cannot be brought back by a late create', async () => {
      assert.equal(await codeOf('deleteVm', { id }, { fence: 2 }), 200)
      assert.equal(await codeOf('deleteVm', { id }, { fence: 2 }), 200)

      assert.equal(await client.findVm(id), undefined)
      assert.equal(await findNetwork(id), undefined)
      assert.equal(await codeOf('getVmSeries', { id }), 'not_found')
      assert.equal(await codeOf('createVm', {}, createBody({ id, fence: 2 })), 'fence_lost')
    })
  })

  suite('a VM that is paused', () => {
    after(deleteAll)
    let id: string
    const envs = { GIVEN: 'at the resume' }
    before(async () => {
      const bandwidth = { ...HOST_NETWORK_DEFAULT.bandwidth, used_bytes: 1000, ingress_bytes: 2000 }
      id = await createVm({ network: { ...HOST_NETWORK_DEFAULT, bandwidth } })
      await putFile(id, 'saved')
    })

    test('is saved once, however often the pause is repeated', async () => {
      const [first, second] = await Promise.all([
        call('pauseVm', { id }, pauseBody(2)),
        call('pauseVm', { id }, pauseBody(2)),
      ])
      const third = await call('pauseVm', { id }, pauseBody(2))

      assert.deepEqual([first.status, first.body.generation], [200, 1])
      assert.deepEqual([second, third], [first, first])
      assert.ok(first.body.counts.used_bytes >= 1000)
      assert.deepEqual(await client.findVm(id), { id, fence: 2, state: 'paused', disk_mib, generation: 1 })
    })

    test('counts as paused for a newer pause too', async () => {
      const { status, body } = await call('pauseVm', { id }, pauseBody(3))

      assert.deepEqual([status, body.generation], [200, 1])
      assert.deepEqual(await client.findVm(id), { id, fence: 3, state: 'paused', disk_mib, generation: 1 })
    })

    test('does not grow', async () => {
      assert.equal(await codeOf('resizeVm', { id }, resizeBody(3, GROWN_MIB)), 'wrong_state')
      assert.equal(await codeOf('resizeVm', { id }, resizeBody(2, GROWN_MIB)), 'fence_lost')
    })

    test('is not measured, and its samples can be read', async () => {
      assert.equal(await codeOf('getVmMetrics', { id }), 'wrong_state')
      assert.equal(await codeOf('getVmSeries', { id }), 200)
    })

    test('has no guest and no network', async () => {
      const guest = await client.request('GET', `/v1/vms/${id}/guest/files?path=/root/note`)
      checkFailure('guest', guest)
      assert.equal(guest.body.code, 'guest_unreachable')
      assert.equal((await client.request('POST', `/v1/vms/${id}/ports/80`, '')).body.code, 'wrong_state')
      assert.equal(await codeOf('getVmNetwork', { id }), 'wrong_state')
      assert.equal(await codeOf('setVmNetwork', { id }, networkBody(3)), 'wrong_state')
      assert.equal(await codeOf('setVmNetwork', { id }, networkBody(2)), 'fence_lost')
      assert.equal(await codeOf('createVm', {}, createBody({ id, fence: 9 })), 'fence_lost')

      const listed = await findNetwork(id)
      assert.equal(listed.revision, undefined)
      assert.ok(listed.used_bytes >= 1000, JSON.stringify(listed))
    })

    test('is resumed once, with its files, the new variables and its counts', async () => {
      const body = resumeBody(4, { envs, network: { ...HOST_NETWORK_DEFAULT, revision: 6 } })
      const [first, second] = await Promise.all([call('resumeVm', { id }, body), call('resumeVm', { id }, body)])
      const third = await call('resumeVm', { id }, body)

      assert.deepEqual([first.status, first.body.generation], [200, 1])
      assert.ok(Date.parse(first.body.saved_at) <= Date.now())
      assert.deepEqual([second, third], [first, first])
      assert.deepEqual(await client.findVm(id), { id, fence: 4, state: 'running', disk_mib, generation: 1 })
      assert.equal(await getFile(id), 'saved')
      const { stdout } = await client.exec(id, { cmd: 'sh', args: ['-c', 'echo "$GIVEN"'] })
      assert.equal(stdout, 'at the resume\n')
      const listed = await findNetwork(id)
      assert.equal(listed.revision, 6)
      // The host knows the newest counts; those of the request may be older.
      assert.ok(listed.used_bytes >= 1000 && listed.ingress_bytes >= 2000, JSON.stringify(listed))
      assert.equal(await codeOf('pauseVm', { id }, pauseBody(3)), 'fence_lost')
    })

    test('grows while it runs, once, and a smaller size that arrives late changes nothing', async () => {
      const sizes = [GROWN_MIB, GROWN_MIB, disk_mib]
      const responses = await Promise.all(sizes.map((size) => call('resizeVm', { id }, resizeBody(4, size))))
      const repeated = await call('resizeVm', { id }, resizeBody(5, GROWN_MIB))

      for (const { status, body } of [...responses, repeated]) {
        assert.deepEqual([status, body], [200, { disk_mib: GROWN_MIB }])
      }
      // It is not an operation with a fence.
      assert.deepEqual(await client.findVm(id), {
        ...{ id, fence: 4, state: 'running', generation: 1, disk_mib: GROWN_MIB },
      })
      assert.equal(await getFile(id), 'saved')
      assert.equal(await codeOf('resizeVm', { id }, resizeBody(3, GROWN_MIB)), 'fence_lost')
    })

    test('is dead when its VMM exits, and continues from its newest generation', async () => {
      await putFile(id, 'not saved')
      await host.killVm(id)
      await until(async () => (await client.findVm(id))?.state === 'dead', 'the VM is dead')

      const dead = await client.findVm(id)
      assert.deepEqual([dead?.fence, dead?.generation, typeof dead?.reason], [4, 1, 'string'])
      assert.equal(await codeOf('pauseVm', { id }, pauseBody(9)), 'wrong_state')
      assert.equal(await codeOf('resizeVm', { id }, resizeBody(9, GROWN_MIB)), 'wrong_state')
      assert.equal(await codeOf('getVmNetwork', { id }), 'wrong_state')
      // The refused pause did not raise the fence.
      const { status, body } = await call('resumeVm', { id }, resumeBody(5))
      assert.deepEqual([status, body.generation, body.how], [200, 1, 'restore'])
      // That generation was saved before the disk grew.
      assert.deepEqual(await client.findVm(id), {
        ...{ id, fence: 5, state: 'running', generation: 1, disk_mib: GROWN_MIB },
      })
      assert.equal(await getFile(id), 'saved')
    })

    test('is deleted although it is being paused, and leaves no generation to fork', async () => {
      const pausing = codeOf('pauseVm', { id }, pauseBody(6))
      assert.equal(await codeOf('deleteVm', { id }, { fence: 7 }), 200)

      assert.ok([200, 'wrong_state', 'fence_lost', 'not_found', 'pause_failed'].includes(await pausing))
      assert.equal(await client.findVm(id), undefined)
      assert.equal(await codeOf('forkVm', { id }, { generation: 1, children: children(1) }), 'not_found')
    })
  })

  suite('a fork', () => {
    after(deleteAll)
    let id: string
    before(async () => {
      id = await createVm()
      await putFile(id, 'of the source')
    })

    test('of a running VM stops it for a moment and leaves it without a generation', async () => {
      const [child] = children(3)
      const { status, body } = await call('forkVm', { id }, { live: true, children: [child!] })

      assert.deepEqual([status, body.generation, typeof body.stopped_ms], [200, 1, 'number'])
      assert.deepEqual(await client.findVm(id), { id, fence: 1, state: 'running', disk_mib })
      assert.deepEqual(await client.findVm(child!.id), { ...child!, state: 'paused', disk_mib, generation: 1 })
      // It never ran, so it has counted nothing.
      assert.equal(await findNetwork(child!.id), undefined)
      assert.deepEqual((await call('forkVm', { id }, { live: true, children: [child!] })).body, { generation: 1 })

      // As the control plane sees a fork whose first resume must not be repeated: its fence rises with the resume.
      assert.equal(await codeOf('resumeVm', { id: child!.id }, resumeBody(2)), 'fence_lost')
      assert.equal(await codeOf('resumeVm', { id: child!.id }, resumeBody(4)), 200)
      await putFile(child!.id, 'of the child')
      assert.equal(await getFile(id), 'of the source')
      assert.equal(await codeOf('deleteVm', { id: child!.id }, { fence: 5 }), 200)
      assert.equal(await codeOf('forkVm', { id }, { live: true, children: [child!] }), 'fence_lost')
    })

    test('of a running VM waits for another that is under way', async () => {
      const [one, two] = children(1, 2)

      const codes = await Promise.all(
        [one!, two!, one!].map((child) => codeOf('forkVm', { id }, { live: true, children: [child] })),
      )

      assert.deepEqual(codes, [200, 200, 200])
      for (const child of [one!, two!]) {
        assert.deepEqual(await client.findVm(child.id), { ...child, state: 'paused', disk_mib, generation: 1 })
      }
    })

    test('of a running VM and a resize wait for each other', async () => {
      const [one, two] = children(1, 2)
      const fork = (child: object) => codeOf('forkVm', { id }, { live: true, children: [child] })

      const codes = await Promise.all([fork(one!), codeOf('resizeVm', { id }, resizeBody(1, GROWN_MIB)), fork(two!)])

      assert.deepEqual(codes, [200, 200, 200])
      assert.equal((await client.findVm(id))?.disk_mib, GROWN_MIB)
      const third = children(1)[0]!
      assert.equal(await fork(third), 200)
      assert.equal((await client.findVm(third.id))?.disk_mib, GROWN_MIB)
    })

    test('of a saved generation is made once, and does not depend on its source', async () => {
      const disk_mib = GROWN_MIB
      const { body: paused } = await call('pauseVm', { id }, pauseBody(2))
      assert.equal(paused.generation, 1)
      const [one, two] = children(1, 2)
      const both = { generation: 1, children: [one!, two!] }

      assert.deepEqual((await call('forkVm', { id }, both)).body, { generation: 1 })
      assert.deepEqual((await call('forkVm', { id }, both)).body, { generation: 1 })
      assert.equal(await codeOf('forkVm', { id }, { children: children(1), live: true }), 'wrong_state')
      assert.equal(await codeOf('forkVm', { id }, { children: children(1), generation: 7 }), 'snapshot_missing')
      // It exists with a lower fence, so this is not a repetition.
      assert.equal(await codeOf('forkVm', { id }, { children: [{ id: one!.id, fence: 2 }] }), 'fence_lost')

      assert.deepEqual(await client.findVm(id), { id, fence: 2, state: 'paused', disk_mib, generation: 1 })
      assert.equal(await codeOf('deleteVm', { id }, { fence: 3 }), 200)
      assert.deepEqual(await client.findVm(one!.id), { ...one!, state: 'paused', disk_mib, generation: 1 })
      assert.equal(await codeOf('resumeVm', { id: two!.id }, resumeBody(2)), 200)
      assert.equal(await getFile(two!.id), 'of the source')
    })
  })
}

/** Accepts one connection and repeats its first line. Says when it listens. */
const ECHO_PROGRAM = `use Socket; $| = 1; socket(my $server, PF_INET, SOCK_STREAM, 0) or die;
bind($server, pack_sockaddr_in($ARGV[0], INADDR_ANY)) or die; listen($server, 1) or die; print "listening\\n";
accept(my $client, $server) or die; my $line = <$client>; syswrite($client, "echo $line"); close($client)`
