/**
 * What the control plane relies on of the builds of a host, as tests (host-contract.ts says who runs them). The steps use
 * only what the fake host understands.
 */
import assert from 'node:assert/strict'
import { after, afterEach, suite, test } from 'node:test'
import {
  HOST_NETWORK_DEFAULT,
  type HostBuild,
  type HostBuildBody,
  type HostBuildLog,
  type HostBuildStep,
  newId,
  templateImageName,
} from '@warren/protocol'
import type { ContractHost } from './host-contract.ts'
import { HostContractClient } from './host-contract-client.ts'
import { scaleLimit } from './slowness.ts'
import { until } from './until.ts'

const LIMIT_MS = 120_000
const MISSING = 'tpl_01ARZ3NDEKTSV4RRFFQ69G5FAV'

export function testHostBuildContract(host: ContractHost): void {
  const client = new HostContractClient(host.socket)
  after(() => client.close())
  const { call, codeOf } = { call: client.call.bind(client), codeOf: client.codeOf.bind(client) }
  const ids = new Set<string>()

  const newBuildId = (): string => {
    const id = newId('template')
    ids.add(id)
    return id
  }
  const owner = () => `usr_${newId('template').slice(4)}`
  const run = (command: string, more: Partial<HostBuildStep> = {}): HostBuildStep => ({
    ...{ kind: 'run', line: 2, text: `RUN ${command}`, env: {}, user: '', workdir: '/' },
    ...{ argv: ['/bin/sh', '-c', command] },
    ...(more as object),
  })
  const buildBody = (steps: HostBuildStep[], more: Partial<HostBuildBody> = {}): HostBuildBody => ({
    ...{ attempt: 1, image: host.image, steps, env: {}, notes: [], cache_owner: owner(), no_cache: false },
    ...{ vcpu: 1, mem_mib: 1024, cpu_quota_pct: 100, disk_mib: 10_240, ip: host.newAddress() },
    ...{ network: HOST_NETWORK_DEFAULT, bases: [] },
    limits: { steps_ms: scaleLimit(LIMIT_MS), rootfs_bytes: 5e9, log_bytes: 1024 * 1024 },
    ...more,
  })
  const start = async (id: string, body: HostBuildBody): Promise<HostBuild> => {
    const response = await call('startBuild', { id }, body)
    assert.equal(response.status, 200, JSON.stringify(response.body))
    return response.body
  }
  const get = async (id: string): Promise<HostBuild> => (await call('getBuild', { id })).body
  const untilEnded = async (id: string): Promise<HostBuild> => {
    await until(async () => (await get(id)).state !== 'running', `${id} has ended`, LIMIT_MS)
    return get(id)
  }
  const readLog = async (id: string, after = 0, wait_ms = 0): Promise<HostBuildLog> =>
    (await call('readBuildLog', { id }, { after, wait_ms })).body
  const textOf = (log: HostBuildLog) => log.lines.map(({ stream }) => stream).join('')
  const findImage = async (id: string) =>
    (await call('getHost')).body.images.find((one: { name: string }) => one.name === templateImageName(id))

  suite('builds of templates', () => {
    afterEach(async () => {
      for (const id of ids) assert.equal(await codeOf('deleteBuild', { id }), 200)
      ids.clear()
    })

    test('a build that is not here', async () => {
      assert.equal(await codeOf('getBuild', { id: MISSING }), 'not_found')
      assert.equal(await codeOf('readBuildLog', { id: MISSING }, { after: 0 }), 'not_found')
      assert.equal(await codeOf('cancelBuild', { id: MISSING }, { attempt: 1, reason: 'test' }), 'not_found')
      assert.equal(await codeOf('deleteBuild', { id: MISSING }), 200)
      assert.equal(await codeOf('startBuild', { id: 'tpl_1' }, buildBody([])), 'invalid')
    })

    test('runs its steps once, becomes an image, and leaves nothing when it is deleted', async () => {
      const id = newBuildId()
      const body = buildBody([run('echo one'), run('echo two')], { notes: ['a note'] })

      const [first, second] = await Promise.all([start(id, body), start(id, body)])
      const done = await untilEnded(id)
      const again = await start(id, body)

      assert.deepEqual([first.attempt, second.attempt], [1, 1])
      assert.deepEqual(
        [done.state, done.steps, done.steps_cached, done.steps_run],
        ['done', 2, 0, 2],
        JSON.stringify(done),
      )
      assert.equal(done.image?.name, templateImageName(id))
      assert.deepEqual(again, done)
      const image = await findImage(id)
      assert.deepEqual([image.state, image.digest], ['ready', done.image?.digest])
      assert.ok((await call('getHost')).body.builds.some((build: HostBuild) => build.id === id))

      const log = await readLog(id)
      assert.equal(log.ended, true)
      assert.match(
        textOf(log),
        /^a note\n#1 \[1\/2\] RUN echo one\none\n#1 DONE .+\n#2 \[2\/2\] RUN echo two\ntwo\n#2 DONE/m,
      )
      assert.deepEqual(
        log.lines.map(({ line }) => line),
        log.lines.map((_, i) => i + 1),
      )
      assert.deepEqual((await readLog(id, 2)).lines, log.lines.slice(2))

      assert.equal(await codeOf('deleteBuild', { id }), 200)
      assert.equal(await codeOf('getBuild', { id }), 'not_found')
      assert.equal(await findImage(id), undefined)
    })

    test('takes unchanged steps from the cache of the same owner', async () => {
      const cache_owner = owner()
      const steps = ['echo 1', 'echo 2', 'echo 3', 'echo 4', 'echo 5'].map((command) => run(command))
      const buildWith = async (body: Partial<HostBuildBody>, from = steps) => {
        const id = newBuildId()
        await start(id, buildBody(from, { cache_owner, ...body }))
        const { state, steps_cached, steps_run, failure } = await untilEnded(id)
        assert.equal(state, 'done', JSON.stringify(failure))
        return { counts: [steps_cached, steps_run], log: textOf(await readLog(id)) }
      }

      const first = await buildWith({})
      const same = await buildWith({})
      const changed = await buildWith({}, [...steps.slice(0, 3), run('echo changed'), ...steps.slice(4)])
      const forced = await buildWith({ no_cache: true })
      const other = await buildWith({ cache_owner: owner() })

      assert.deepEqual(first.counts, [0, 5])
      assert.deepEqual(same.counts, [5, 0])
      assert.match(same.log, /#5 CACHED/)
      assert.deepEqual(changed.counts, [3, 2])
      assert.deepEqual(forced.counts, [0, 5])
      assert.deepEqual(other.counts, [0, 5])
    })

    test('fails with the step that failed, keeps its log, and can be tried again', async () => {
      const id = newBuildId()
      const body = buildBody([run('echo kept'), run('echo broken; exit 3')])

      await start(id, body)
      const failed = await untilEnded(id)

      assert.deepEqual([failed.state, failed.failure?.code, failed.steps_run], ['failed', 'step_failed', 1])
      assert.match(failed.failure!.reason, /exit code 3/)
      assert.match(textOf(await readLog(id)), /broken\n(.*\n)*.*exit code 3/)
      assert.equal(await findImage(id), undefined)

      await start(id, { ...body, attempt: 2, steps: [run('echo kept'), run('echo fixed')] })
      const done = await untilEnded(id)
      assert.deepEqual([done.state, done.attempt, done.steps_cached, done.steps_run], ['done', 2, 1, 1])
      const attempts = new Set((await readLog(id)).lines.map(({ attempt }) => attempt))
      assert.deepEqual([...attempts], [1, 2])
      assert.equal(await codeOf('startBuild', { id }, body), 'fence_lost')
    })

    test('is cancelled, or ends when its time is over', async () => {
      const [cancelled, slow, deleted] = [newBuildId(), newBuildId(), newBuildId()]
      const body = buildBody([run('echo started; sleep 1000')])
      await start(cancelled, body)
      let lines = 0
      await until(async () => {
        const log = await readLog(cancelled, lines, 1_000)
        lines += log.lines.length
        return textOf(log).includes('started\n')
      }, 'the step runs')
      assert.equal(await codeOf('startBuild', { id: cancelled }, { ...body, attempt: 2 }), 'wrong_state')
      const waiting = readLog(cancelled, lines, 30_000)

      const response = await call('cancelBuild', { id: cancelled }, { attempt: 1, reason: 'not wanted' })

      const failure = { code: 'cancelled', reason: 'not wanted' }
      assert.deepEqual([response.body.state, response.body.failure], ['failed', failure])
      assert.match(textOf(await waiting), /not wanted/)
      assert.equal(await findImage(cancelled), undefined)

      const limits = { ...body.limits, steps_ms: scaleLimit(host.vmStartMs ?? 10_000) }
      await start(slow, { ...body, ip: host.newAddress(), limits })
      const timedOut = await untilEnded(slow)
      assert.equal(timedOut.failure?.code, 'timeout')

      await start(deleted, { ...body, ip: host.newAddress() })
      assert.equal(await codeOf('deleteBuild', { id: deleted }), 200)
      assert.equal(await codeOf('getBuild', { id: deleted }), 'not_found')
    })

    test('fails if its base is not here', async () => {
      const id = newBuildId()
      await start(id, buildBody([], { image: 'none:1' }))

      const { state, failure } = await untilEnded(id)

      assert.deepEqual([state, failure?.code], ['failed', 'image_not_ready'])
    })
  })
}
