/** The jail of tools that read hostile files. What they do with a good file is tested by shrink-ext4.test.ts. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { ensureToolsRoot } from '../vmm/jail/root.ts'
import {
  ATTACK,
  ATTACK_IN_JAIL,
  ATTACKER_UID,
  listImpossible,
  listSuccesses,
  openTargets,
  parseOutcomes,
} from '../vmm/jail/testing.ts'
import { FILE, runInToolJail } from './run-on-file.ts'
import { makeToolDeps, skipTools } from './testing.ts'

const MIB = 1024 ** 2
const SHELL = 'dash'

test('everything that a taken over tool could try fails', { skip: skipTools }, async (t) => {
  const { folder, args } = await openTargets(t)
  const deps = await makeToolDeps(t)
  const file = path.join(folder, 'disk')
  writeFileSync(file, 'a file system', { mode: 0o600 })
  const { folder: root } = await ensureToolsRoot(deps.config.cacheDir, ['e2fsck'])
  cpSync(ATTACK, path.join(root, ATTACK_IN_JAIL))
  cpSync(ATTACK, path.join(folder, 'attack'))

  const { output } = await runInToolJail(deps, root, file, ATTACKER_UID, [ATTACK_IN_JAIL, ...args])
  const user = ['--reuid', `${ATTACKER_UID}`, '--regid', `${ATTACKER_UID}`, '--clear-groups', '--no-new-privs']
  const free = execFileSync('setpriv', [...user, path.join(folder, 'attack'), ...args], { encoding: 'utf8' })

  const jailed = parseOutcomes(output)
  assert.ok(jailed.size >= 90, `${jailed.size} attempts: ${output}`)
  assert.deepEqual(listSuccesses(jailed), [])
  assert.deepEqual(listImpossible(parseOutcomes(free)), [])
})

test('a tool changes the file that it is given, cannot make it longer, and sees no other', {
  skip: skipTools,
}, async (t) => {
  const { folder } = await openTargets(t)
  const deps = await makeToolDeps(t)
  const file = path.join(folder, 'disk')
  writeFileSync(file, Buffer.alloc(MIB))
  const { folder: root, programs } = await ensureToolsRoot(deps.config.cacheDir, [SHELL])
  const sh = (script: string) => runInToolJail(deps, root, file, ATTACKER_UID, [programs[SHELL], '-c', script])

  assert.deepEqual(await sh(`echo changed 1<>${FILE}; exit 3`), { exitCode: 3, output: '' })
  assert.equal(readFileSync(file).subarray(0, 8).toString(), 'changed\n')
  assert.match((await sh(`while echo 0123456789abcdef; do :; done >>${FILE}; echo stopped`)).output, /stopped$/m)
  assert.equal(statSync(file).size, MIB)
  assert.equal((await sh('echo /*')).output, '/dev /etc /lib /lib64 /proc /usr\n')
  assert.equal(statSync(file).uid, 0)
  assert.ok(!existsSync(`${file}.output`))
  assert.deepEqual(await deps.cgroups.list(), [])
})

test('output without end does not fill memory or disk, and an abort ends the tool', { skip: skipTools }, async (t) => {
  const { folder } = await openTargets(t)
  const deps = await makeToolDeps(t)
  const file = path.join(folder, 'disk')
  writeFileSync(file, Buffer.alloc(MIB))
  const { folder: root, programs } = await ensureToolsRoot(deps.config.cacheDir, [SHELL])
  const abort = new AbortController()

  const flood = runInToolJail(
    deps,
    root,
    file,
    ATTACKER_UID,
    [programs[SHELL], '-c', 'echo started 1<>/proc/self/fd/3; while :; do echo 0123456789abcdef; done'],
    abort.signal,
  )
  flood.catch(() => {}) // Awaited below.
  await until(() => readFileSync(file).subarray(0, 7).toString() === 'started', 'the tool runs')
  await passTime(200, 'the output continues meanwhile')
  assert.equal(statSync(`${file}.output`).size, 0)
  abort.abort(new Error('cancelled'))

  await assert.rejects(flood, /cancelled/)
  assert.deepEqual(await deps.cgroups.list(), [])
})
