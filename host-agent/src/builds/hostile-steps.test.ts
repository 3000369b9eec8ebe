/** Steps are untrusted code with root in a VM. Whatever they do, the build ends with a reason, and the host keeps working. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { afterEach, suite, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { startHostAgent } from '../testing/host-agent.ts'
import { BuildClient, run } from './testing.ts'

const skip =
  process.getuid?.() !== 0
    ? 'virtual machines need root'
    : spawnSync('qemu-system-x86_64', ['--version']).status !== 0 && 'QEMU is not installed'

const client = skip ? (undefined as never) : new BuildClient(await startHostAgent({ WARREN_POOL_MIB: '0' }))

suite('a step that', { skip }, () => {
  afterEach(() => client.deleteAll())

  test('fails leaves its log and what the steps before it made in the cache', async () => {
    const { id, failure } = await client.build(client.body([run('echo kept'), run('ls /no/such/folder')]))

    assert.equal(failure?.code, 'step_failed')
    assert.match(failure!.reason, /^line 2: RUN ls \/no\/such\/folder ended with exit code 2$/)
    assert.match(await client.log(id), /\/no\/such\/folder.*No such file[\s\S]*\nERROR: line 2/)
    await client.checkNothingLeft(id)
  })

  test('names a program or a user that does not exist', async () => {
    const [program, user] = await Promise.all([
      client.build(client.body([run('', { argv: ['/no/such/program'] } as never)])),
      client.build(client.body([run('true', { user: 'no-such-user' })])),
    ])

    assert.match(program.failure!.reason, /failed to start: command not found/)
    assert.match(user.failure!.reason, /there is no user no-such-user in \/etc\/passwd/)
    assert.deepEqual([program.failure?.code, user.failure?.code], ['step_failed', 'step_failed'])
  })

  test('fills the disk, or makes more than the result may have, fails', async () => {
    const [full, large] = await Promise.all([
      client.build(client.body([run('fallocate -l 9500M /big; dd if=/dev/zero of=/rest bs=1M')])),
      client.build(client.body([run('fallocate -l 6G /big')])),
    ])

    assert.equal(full.failure?.code, 'step_failed')
    assert.match(await client.log(full.id), /No space left on device/)
    assert.equal(large.failure?.code, 'too_large')
    assert.match(large.failure!.reason, /more than 5\.0 GB/)
    await client.checkNothingLeft(large.id)
  })

  test('turns the machine off, or makes its kernel panic, ends the build', async () => {
    const [off, panic] = await Promise.all([
      client.build(client.body([run('kill -TERM 1; sleep 1000')])),
      client.build(client.body([run('echo c > /proc/sysrq-trigger; sleep 1000')])),
    ])

    assert.deepEqual([off.failure?.code, panic.failure?.code], ['vm_died', 'vm_died'])
    await client.checkNothingLeft(panic.id)
  })

  test('forks without end is ended with its machine', async () => {
    const limits = { ...client.body([]).limits, steps_ms: scaleLimit(10_000) }
    const { id, failure } = await client.build(
      client.body([run('bomb() { bomb | bomb & }; bomb; sleep 1000')], { limits }),
    )

    assert.ok(['timeout', 'vm_died', 'step_failed'].includes(failure!.code), JSON.stringify(failure))
    await client.checkNothingLeft(id)
  })

  test('leaves a daemon behind, or writes twenty times what its log holds, disturbs no later step', async () => {
    const { id, state, failure, steps_run } = await client.build(
      client.body([
        run('setsid sleep 1234 & echo started'),
        run('! grep -lE "slee[p].12[3]4" /proc/[0-9]*/cmdline'),
        run('head -c 200000000 /dev/zero | tr "\\0" "y"; echo the end'),
        run('echo after it'),
      ]),
    )

    assert.deepEqual([state, steps_run], ['done', 4], JSON.stringify(failure))
    const log = await client.log(id)
    assert.match(log, /^started$/m)
    assert.ok(log.length > 8e6 && log.length < 11e6, `${log.length}`)
    assert.match(log, /The log is full\. Further output is dropped\.\n$/)
  })
})
