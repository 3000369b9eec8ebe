import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { type TestContext, test } from 'node:test'
import { promisify } from 'node:util'

const CLAIM_IDS = JSON.stringify(path.join(import.meta.dirname, 'claim-ids.ts'))
const skip = process.getuid?.() !== 0 && 'needs root'

test('a data directory keeps its ids, and a copy of it gets others', { skip }, async (t) => {
  const folder = await createFolder(t)

  const first = await claim(t, folder)
  await first.release()
  const again = await claim(t, folder)
  await again.release()
  const copy = path.join(await createFolder(t), 'copy')
  await cp(folder, copy, { recursive: true })
  const ofCopy = await claim(t, copy)

  assert.equal(again.first, first.first)
  assert.notEqual(ofCopy.first, first.first)
  assert.equal(JSON.parse(await readFile(path.join(copy, 'service-ids.json'), 'utf8')).first, ofCopy.first)
})

// Two blocks are left: whatever the hashes are, the second data directory must take the other one.
const BEFORE_VMMS = 1_610_612_702
const AT_THE_END = 4_294_967_263

test('two data directories with the same choice have different ids while both are in use', { skip }, async (t) => {
  const [one, two, three] = await claimAll(t, BEFORE_VMMS, 3)

  assert.deepEqual(new Set([one, two]), new Set([`${BEFORE_VMMS}`, `${BEFORE_VMMS + 16}`]))
  assert.match(three!, /^all user ids from 1610612702 on are in use: by other instances, .*; set WARREN_SERVICE_UID$/)
})

test('ids of an account are left out', { skip }, async (t) => {
  const account = `ada:x:${BEFORE_VMMS + 15}:0::/:/bin/sh`

  const [one, two] = await claimAll(t, BEFORE_VMMS, 2, account)

  assert.equal(one, `${BEFORE_VMMS + 16}`)
  assert.match(two!, /are in use: .* or by accounts \(\/etc\/passwd gives 1610612717 to ada\); set WARREN_SERVICE_UID$/)
})

test('ids of running processes are left out', { skip }, async (t) => {
  const uid = `${AT_THE_END + 20}`
  const running = spawn('setpriv', ['--reuid', uid, '--clear-groups', 'sh', '-c', 'echo; read _'], { stdio: 'pipe' })
  t.after(() => running.kill('SIGKILL'))
  await once(running.stdout, 'data')

  const [one, two] = await claimAll(t, AT_THE_END, 2)

  assert.equal(one, `${AT_THE_END}`)
  assert.match(two!, /are in use: by other instances, by running processes/)
  assert.equal(running.exitCode ?? running.signalCode, null)
})

/**
 * Claims ids for new data directories, in one process and a separate network, because the names that hold ids belong to
 * the network. `account` is added to /etc/passwd.
 */
async function claimAll(t: TestContext, start: number, count: number, account = ''): Promise<string[]> {
  const folder = await createFolder(t)
  const passwd = path.join(folder, 'passwd')
  await writeFile(passwd, `${await readFile('/etc/passwd', 'utf8')}${account}\n`)
  const folders = Array.from({ length: count }, (_, index) => path.join(folder, `${index}`))
  for (const one of folders) await mkdir(one)
  const script = `
    import { claimServiceIds } from ${CLAIM_IDS}
    for (const folder of ${JSON.stringify(folders)})
      console.log(await claimServiceIds(folder).catch((error) => error.message))`
  const command = 'mount --bind "$1" /etc/passwd && shift && exec "$@"'
  const node = [process.execPath, '--input-type=module', '-e', script]
  const { stdout } = await promisify(execFile)(
    'unshare',
    ['--net', '--mount', 'sh', '-c', command, 'sh', passwd, ...node],
    {
      env: { PATH: process.env.PATH, WARREN_SERVICE_UID: `${start}` },
    },
  )
  return stdout.trim().split('\n')
}

async function createFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-ids-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  return folder
}

/** In a separate process, which holds the ids until it is released. */
async function claim(t: TestContext, folder: string) {
  const script = `
    import { claimServiceIds } from ${CLAIM_IDS}
    console.log(await claimServiceIds(${JSON.stringify(folder)}).catch((error) => error.message))
    process.stdin.resume()`
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { PATH: process.env.PATH },
  })
  const release = async () => {
    child.stdin.end()
    if (child.exitCode === null) await once(child, 'exit')
  }
  t.after(release)
  const [line] = await once(createInterface(child.stdout), 'line')
  return { first: /^\d+$/.test(line) ? Number(line) : line, release }
}
