/** Services that root starts: each has its own user, and data directories of earlier versions are handed over to them. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { lchownSync, lstatSync, readFileSync, readlinkSync, statSync, writeFileSync } from 'node:fs'
import { lstat, mkdir, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { backUp, restore } from './support/back-up.ts'
import {
  createDataDir,
  fetchPath,
  getControlPlanePid,
  getPostmasterPid,
  kill,
  launch,
  listProcesses,
  runWarren,
  startInstance,
  stop,
} from './support/instance.ts'

const skip = process.getuid?.() !== 0 && 'needs root'

test('PostgreSQL and the control plane have separate users, without capabilities, in separate namespaces', {
  skip,
}, async (t) => {
  const dataDir = await createDataDir(t)
  const instance = await startInstance(dataDir)
  const pids = [getPostmasterPid(dataDir), await getControlPlanePid(dataDir)]

  const uids = pids.map((pid) => statSync(`/proc/${pid}`).uid)
  assert.equal(new Set([...uids, 0]).size, 3)
  for (const pid of pids) {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8')
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'])
      assert.match(status, new RegExp(`^${set}:\t0+$`, 'm'))
    assert.match(status, /^NoNewPrivs:\t1$/m)
    for (const kind of ['mnt', 'pid', 'ipc', 'uts']) {
      assert.notEqual(readlinkSync(`/proc/${pid}/ns/${kind}`), readlinkSync(`/proc/self/ns/${kind}`), kind)
    }
    // The ids are real ones, so this also works where user namespaces are switched off.
    assert.equal(readlinkSync(`/proc/${pid}/ns/user`), readlinkSync('/proc/self/ns/user'))
  }
  assert.equal(statSync(path.join(dataDir, 'postgres')).uid, uids[0])
  assert.equal(statSync(path.join(dataDir, 'control-plane')).uid, uids[1])
  // What everything else reads belongs to root.
  for (const file of ['local.key', 'instance.json']) assert.equal(lstatSync(path.join(dataDir, file)).uid, 0, file)
  assert.equal(await stop(instance), 0)
  assert.deepEqual(await readdir(path.join(dataDir, 'mirror')), [])
})

test('a data directory that belongs to root is handed over, with the keys where earlier versions had them', {
  skip,
}, async (t) => {
  const dataDir = await createDataDir(t)
  const { key, secretsKey } = await fillAsEarlierVersion(dataDir)

  const again = await startInstance(dataDir)

  assert.equal(again.key, key)
  assert.match((await runWarren(dataDir, 'admin', 'user', 'list')).stdout, /\bada\b/)
  assert.ok((await lstat(path.join(dataDir, 'secrets.key'))).isSymbolicLink())
  assert.equal(await readFile(path.join(dataDir, 'secrets.key'), 'utf8'), secretsKey)
  assert.notEqual(statSync(path.join(dataDir, 'postgres/base')).uid, 0)
  assert.equal(await stop(again), 0)
})

test('a start that is killed while folders are handed over loses nothing', { skip }, async (t) => {
  const dataDir = await createDataDir(t)
  const { key, secretsKey } = await fillAsEarlierVersion(dataDir)
  // The folder is handed over after what is in it, so the first of these files are a moment before the folder.
  const many = path.join(dataDir, 'postgres/many')
  await mkdir(many)
  for (let number = 0; number < 20_000; number++) writeFileSync(path.join(many, `${number}`), '')

  const killed = launch(dataDir)
  const isHandedOver = (name: string) => statSync(path.join(many, name)).uid !== 0
  await until(() => ['0', '4000', '8000', '12000', '16000', '19999'].some(isHandedOver), 'a file is handed over')
  kill(killed.pid)
  await killed.exited
  await until(() => listProcesses(dataDir).length === 0, 'everything has ended')
  // Whatever had been reached: every second file is root's again.
  const files = await readdir(path.join(dataDir, 'postgres'), { recursive: true })
  for (const name of files.filter((_, index) => index % 2 === 0)) lchownSync(path.join(dataDir, 'postgres', name), 0, 0)
  await rm(many, { recursive: true })
  const again = await startInstance(dataDir)

  assert.equal(again.key, key)
  assert.match((await runWarren(dataDir, 'admin', 'user', 'list')).stdout, /\bada\b/)
  assert.equal(await readFile(path.join(dataDir, 'secrets.key'), 'utf8'), secretsKey)
  const { uid } = statSync(path.join(dataDir, 'postgres'))
  const left = await readdir(path.join(dataDir, 'postgres'), { recursive: true })
  const owners = left.map((name) => lstatSync(path.join(dataDir, 'postgres', name), { throwIfNoEntry: false })?.uid)
  assert.deepEqual(new Set(owners.filter((owner) => owner !== undefined)), new Set([uid]))
  assert.equal(await stop(again), 0)
})

test('a data directory that was backed up and restored elsewhere starts, with other users', { skip }, async (t) => {
  const dataDir = await createDataDir(t)
  const { key, ...instance } = await startInstance(dataDir)
  assert.equal((await runWarren(dataDir, 'admin', 'user', 'create', 'ada')).code, 0)
  assert.equal(await stop(instance), 0)
  const secretsKey = await readFile(path.join(dataDir, 'secrets.key'), 'utf8')
  const file = path.join(path.dirname(dataDir), 'back-up.tar')
  backUp(dataDir, file)
  const restored = await createDataDir(t)
  restore(file, restored)

  // Both at once: the original still has its users.
  const [original, copy] = await Promise.all([startInstance(dataDir), startInstance(restored)])

  assert.equal(copy.key, key)
  assert.match((await runWarren(restored, 'admin', 'user', 'list')).stdout, /\bada\b/)
  assert.equal(await readFile(path.join(restored, 'secrets.key'), 'utf8'), secretsKey)
  for (const name of ['postgres', 'postgres-socket', 'control-plane']) {
    const [before, after] = [dataDir, restored].map((folder) => statSync(path.join(folder, name)).uid)
    assert.notEqual(after, before, name)
  }
  assert.deepEqual(await Promise.all([stop(original), stop(copy)]), [0, 0])
})

test('the database can be on another volume, by a link', { skip }, async (t) => {
  const dataDir = await createDataDir(t)
  const volume = path.join(path.dirname(dataDir), 'volume')
  await mkdir(volume)
  assert.equal(await stop(await startInstance(dataDir)), 0)
  await rename(path.join(dataDir, 'postgres'), path.join(volume, 'pg'))
  await symlink(path.join(volume, 'pg'), path.join(dataDir, 'postgres'))

  const instance = await startInstance(dataDir)

  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  assert.ok((await lstat(path.join(dataDir, 'postgres'))).isSymbolicLink())
  assert.ok(getPostmasterPid(dataDir) > 0)
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listProcesses(dataDir), [])
})

test('a data directory with a path that is too long for sockets works', { skip }, async (t) => {
  const dataDir = await createDataDir(t, `${'long-name/'.repeat(9)}data`)

  const instance = await startInstance(dataDir)

  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  assert.equal(await stop(instance), 0)
})

test('when the jail of a service is killed, everything in it ends, and the service is started again', {
  skip,
}, async (t) => {
  const dataDir = await createDataDir(t)
  const instance = await startInstance(dataDir)
  const program = await getControlPlanePid(dataDir)
  const { children } = JSON.parse(readFileSync(path.join(dataDir, 'instance.json'), 'utf8'))

  kill(children[0].pid)

  // Until then the old program could answer.
  await until(() => !listProcesses(dataDir).includes(program), 'the program has ended')
  await until(
    async () => (await fetchPath(instance, '/v1/whoami').catch(() => undefined))?.status === 200,
    'it serves again',
  )
  assert.notEqual(await getControlPlanePid(dataDir), program)
})

test('certificates that only root can read are used, and replaced while Warren runs', { skip }, async (t) => {
  const dataDir = await createDataDir(t)
  const folder = path.dirname(dataDir)
  const [cert, key] = ['cert.pem', 'key.pem'].map((name) => path.join(folder, name)) as [string, string]
  const issue = (name: string) =>
    spawnSync('openssl', [
      ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'],
      ...['-subj', `/CN=${name}`, '-keyout', key, '-out', cert],
    ])
  assert.equal(issue('first').status, 0)
  const instance = await startInstance(dataDir, { env: { WARREN_INGRESS_CERT: cert, WARREN_INGRESS_KEY: key } })
  const port = /https:\/\/<id>-<port>\.localhost:(\d+)/.exec(instance.output())![1]!
  const readName = () =>
    spawnSync('openssl', ['s_client', '-connect', `127.0.0.1:${port}`, '-servername', 'x.localhost'], {
      input: '',
      encoding: 'utf8',
    }).stdout
  assert.match(readName(), /CN ?= ?first/)
  assert.equal(statSync(key).mode & 0o077, 0)

  await writeFile(cert, '')
  assert.equal(issue('second').status, 0)

  await until(() => /CN ?= ?second/.test(readName()), 'the new certificate is served')
})

/** Everything is root's, and the keys are in the data directory itself. There is a user `ada`. */
async function fillAsEarlierVersion(dataDir: string): Promise<{ key: string; secretsKey: string }> {
  const { key, ...instance } = await startInstance(dataDir)
  assert.equal((await runWarren(dataDir, 'admin', 'user', 'create', 'ada')).code, 0)
  assert.equal(await stop(instance), 0)
  const at = (name: string) => path.join(dataDir, name)
  await rm(at('secrets.key'))
  await rename(at('control-plane/secrets.key'), at('secrets.key'))
  for (const name of ['control-plane', 'service-ids.json', 'postgres-socket', 'mirror', 'migrations']) {
    await rm(at(name), { recursive: true, force: true })
  }
  assert.equal(spawnSync('chown', ['-R', '0:0', dataDir]).status, 0)
  return { key, secretsKey: await readFile(at('secrets.key'), 'utf8') }
}
