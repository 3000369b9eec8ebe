/** Programs in the jail of a service: what they see, and how they end. */
import assert from 'node:assert/strict'
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readlinkSync, symlinkSync, writeFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { text } from 'node:stream/consumers'
import { type TestContext, test } from 'node:test'
import { until } from '../testing/until.ts'
import { type Confinement, confine } from './confine.ts'
import { endProcesses, handOver, listProcesses } from './hand-over.ts'
import { MIRRORED_SYSTEM_FILES, openMirror } from './mirror.ts'
import { serviceUser } from './services.ts'

const skip = process.getuid?.() !== 0 && 'needs root'
/** Below those of every data directory, and of this process alone: each test ends all processes of the user. */
const user = serviceUser(1_500_000_000 + 16 * process.pid, 'control-plane')

/** Not the PATH of the test run, whose folders are not in the jail. */
const SYSTEM_PATH = '/usr/sbin:/usr/bin:/sbin:/bin'

test('a program has its own user, no capabilities and no privileges to gain', { skip }, async (t) => {
  const it = await setUp(t)

  const { stdout } = await it.run(
    'id -u; id -un; id -G; grep -E "^(Cap|NoNewPrivs)" /proc/self/status; ulimit -c; echo $$',
  )

  const [uid, name, groups, ...rest] = stdout.trim().split('\n')
  assert.deepEqual([uid, name], [`${user.uid}`, 'warren-control-plane'])
  assert.equal(groups, `${user.gid} ${user.groups[0]}`)
  const status = rest.slice(0, -2)
  assert.deepEqual(
    status.filter((line) => !/^(Cap\w+:\t0+|NoNewPrivs:\t1)$/.test(line)),
    [],
  )
  assert.equal(status.length, 6)
  assert.deepEqual(rest.slice(-2), ['0', '2'])
})

test('a program sees the system, what it was given and nothing else, and writes to its own folder only', {
  skip,
}, async (t) => {
  const it = await setUp(t)

  const { stdout } = await it.run(`
    ls / /etc/shadow /root /home /sys /run "${it.folder}" 2>/dev/null
    echo -; cat "${it.folder}/given/file"
    for at in "${it.folder}/given" "${it.folder}/own" /tmp /dev/shm / /etc /usr; do touch "$at/new" 2>/dev/null && echo "$at"; done
    ls /proc | grep -c "^[0-9]"`)

  const [seen, rest] = stdout.split('-\n') as [string, string]
  assert.doesNotMatch(seen, /shadow|root|home|sys|run/)
  assert.match(seen, /^given\nown$/m)
  const [content, ...writable] = rest.trim().split('\n')
  assert.equal(content, 'content')
  assert.deepEqual(writable.slice(0, -1), [`${it.folder}/own`, '/tmp', '/dev/shm'])
  assert.ok(Number(writable.at(-1)) <= 5)
})

test('what a program creates is for its own user alone', { skip }, async (t) => {
  const it = await setUp(t)

  const { stdout } = await it.run(`cd "${it.folder}/own" && touch file && mkdir folder && stat -c %a file folder`)

  assert.equal(stdout, '600\n700\n')
})

test('without the network a program has no interface but its own loopback', { skip }, async (t) => {
  const it = await setUp(t)

  assert.equal((await it.run('tail -n +3 /proc/self/net/dev | cut -d: -f1')).stdout.trim(), 'lo')
  const own = 'readlink /proc/self/ns/net'
  assert.equal((await it.run(own, { network: true })).stdout.trim(), readlinkSync('/proc/self/ns/net'))
  assert.notEqual((await it.run(own)).stdout.trim(), readlinkSync('/proc/self/ns/net'))
})

test('a program sees the same if its caller makes files for itself only', { skip }, async (t) => {
  const it = await setUp(t)

  const before = process.umask(0o077)
  const child = it.spawn(`cat ${it.folder}/given/file /etc/passwd`)
  process.umask(before)

  const { stdout, stderr } = await it.wait(child)
  assert.equal(stderr, '')
  assert.match(stdout, /^content\nroot:/)
})

test('exit codes and signals are those of the program', { skip }, async (t) => {
  const it = await setUp(t)

  assert.deepEqual((await it.run('exit 7')).exit, [7, null])
  assert.deepEqual((await it.run('kill -KILL $$')).exit, [null, 'SIGKILL'])
  const notAProgram = await it.wait(it.spawnProgram(path.join(it.folder, 'given/file'), []))
  assert.equal(notAProgram.exit[0], 127)
  assert.match(notAProgram.stderr, /^jail: failed to execute .*given\/file: Permission denied/)
})

test('signals reach the program, and a killed jail takes everything in it along', { skip }, async (t) => {
  const it = await setUp(t)
  const script = 'trap "echo caught; exit 9" TERM; sleep 1000 & echo ready; while :; do wait; done'
  const polite = it.spawn(script)
  await once(polite.stdout!, 'data')

  polite.kill('SIGTERM')
  assert.deepEqual((await it.wait(polite)).exit, [9, null])

  const killed = it.spawn(script)
  await once(killed.stdout!, 'data')
  killed.kill('SIGKILL')
  await it.wait(killed)
  await until(() => listProcesses(user.uid).length === 0, 'the program and its children have ended')
})

test('when the caller ends, the program gets its signal', { skip }, async (t) => {
  const it = await setUp(t)
  const own = path.join(it.folder, 'own')
  const trap = `trap "echo caught > ${own}/signal; exit" INT; touch ${own}/ready; while :; do sleep 0.01; done`
  const caller = spawn(process.execPath, [
    ...['--input-type=module', '-e'],
    `import { spawn } from 'node:child_process'
     import { confine } from ${JSON.stringify(path.join(import.meta.dirname, 'confine.ts'))}
     const confinement = ${JSON.stringify({ ...it.standard, deathSignal: 'INT' })}
     spawn(...confine(confinement, '/bin/sh', ['-c', ${JSON.stringify(trap)}]), { detached: true, env: { PATH: '${SYSTEM_PATH}' } })`,
  ])
  await until(() => existsSync(path.join(own, 'ready')), 'the program runs')

  caller.kill('SIGKILL')

  await until(() => existsSync(path.join(own, 'signal')), 'the signal was caught')
  await until(() => listProcesses(user.uid).length === 0, 'the program has ended')
})

test('the IPC channel of Node passes through, and its end is seen at both sides', { skip }, async (t) => {
  const it = await setUp(t)
  const script =
    'process.on("message", (m) => process.send({ reply: m })); process.on("disconnect", () => process.exit(3))'
  const child = it.spawnProgram(process.execPath, ['-e', script], ['ignore', 'pipe', 'pipe', 'ipc'])

  child.send({ question: 1 })
  const [reply] = await once(child, 'message')
  child.disconnect()

  assert.deepEqual(reply, { reply: { question: 1 } })
  assert.deepEqual((await it.wait(child)).exit, [3, null])
})

test('mirrored files can be read by the program, also after they were replaced', { skip }, async (t) => {
  const it = await setUp(t)
  const key = path.join(it.folder, 'secret/tls.key')
  mkdirSync(path.dirname(key), { mode: 0o700 })
  writeFileSync(key, 'first', { mode: 0o600 })
  const mirror = await openMirror(user, path.join(it.folder, 'mirror'), { files: [key, ...MIRRORED_SYSTEM_FILES] })
  t.after(() => mirror.close())
  const script = `cat ${key} >&2; echo ready; while [ "$(cat ${key})" = first ]; do sleep 0.1; done; cat ${key} >&2`

  const child = it.spawnProgram('/bin/sh', ['-c', `cat /etc/hosts > /dev/null && ${script}`], undefined, { mirror })
  await once(child.stdout!, 'data')
  await rm(key)
  writeFileSync(key, 'second', { mode: 0o600 })

  assert.equal((await it.wait(child)).stderr, 'firstsecond')
})

test('a file in the folder of a service is not mirrored through a link', { skip }, async (t) => {
  const it = await setUp(t)
  symlinkSync('/etc/shadow', path.join(it.folder, 'own/gateway.key'))
  const options = { files: [], ofServices: [path.join(it.folder, 'own/gateway.key')] }

  await assert.rejects(openMirror(user, path.join(it.folder, 'mirror'), options), /gateway\.key/)
})

async function setUp(t: TestContext) {
  const folder = mkdtempSync(path.join(tmpdir(), 'warren-confine-'))
  t.after(async () => {
    await endProcesses(user)
    await rm(folder, { recursive: true })
  })
  mkdirSync(path.join(folder, 'given'))
  writeFileSync(path.join(folder, 'given/file'), 'content\n')
  chmodSync(path.join(folder, 'given'), 0o755)
  chmodSync(path.join(folder, 'given/file'), 0o644)
  await handOver(user, [path.join(folder, 'own')])
  const standard = {
    ...{ user, read: [path.join(folder, 'given')], write: [path.join(folder, 'own')] },
    ...{ network: false, deathSignal: 'TERM' },
  } satisfies Confinement
  const it = {
    folder,
    standard,
    confine: (command: string, args: string[], changes: Partial<Confinement> = {}) =>
      confine({ ...standard, ...changes }, command, args),
    spawnProgram(
      command: string,
      args: string[],
      stdio: SpawnOptions['stdio'] = ['ignore', 'pipe', 'pipe'],
      changes: Partial<Confinement> = {},
    ): ChildProcess {
      return spawn(...it.confine(command, args, changes), { stdio, env: { PATH: SYSTEM_PATH } })
    },
    spawn: (script: string, changes: Partial<Confinement> = {}) =>
      it.spawnProgram('/bin/sh', ['-c', script], undefined, changes),
    async wait(child: ChildProcess) {
      const [stdout, stderr, exit] = await Promise.all([
        text(child.stdout!),
        text(child.stderr!),
        once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>,
      ])
      return { stdout, stderr, exit }
    },
    run: (script: string, changes: Partial<Confinement> = {}) => it.wait(it.spawn(script, changes)),
  }
  return it
}
