/** Disks: buckets of a real S3 server in real VMs, which never see a credential. */
import assert from 'node:assert/strict'
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readSync } from 'node:fs'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { startS3Server, type TestS3Server } from '@warren/kit/testing/s3-server'
import { until } from '@warren/kit/testing/until'
import { getHostAgentPid, kill, runWarren } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  pauseSandbox,
  request,
  requestOk,
  resumeSandbox,
  runShell,
} from './support/sandboxes.ts'
import {
  cannotRunVms,
  findQemuPid,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

/** Without standby: every resume is one from disk, in a new VMM. The contract of the host API has one from standby. */
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_DISKS: 'on', WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0' }),
)
const store: TestS3Server = await startUnlessSkipped(cannotRunVms, () => startS3Server({ after }, 'versitygw'))
const OTHER = { accessKey: 'AKIAOTHERACCESSKEY', secretKey: 'other/secret+key9876543210zyxwvutsrqponmlk' }
const FIRST = { ...store.credentials }

/** Mounts are checked every 30 s. */
const CHECKED_LIMIT_MS = 120_000

type Mount = { mount_path: string; mount_status: string; mount_error?: string }

const toBody = ({ accessKey, secretKey }: typeof FIRST) => ({ access_key: accessKey, secret_key: secretKey })
const listMounts = async (id: string): Promise<Mount[]> =>
  (await requestOk(warren, 'GET', `/sandboxes/${id}/disks`)).data as Mount[]
const waitFor = (id: string, mountPath: string, status = 'mounted') =>
  until(
    async () => {
      const mount = (await listMounts(id)).find(({ mount_path }) => mount_path === mountPath)
      return mount?.mount_status === status && mount
    },
    `${mountPath} is ${status}`,
    CHECKED_LIMIT_MS,
  )
/** A program that writes a line, and another one when /tmp/continue exists. */
async function keepOpen(id: string, file: string, line: string): Promise<void> {
  const script = `exec 3> ${file}; echo ${line} >&3; until [ -e /tmp/continue ]; do sleep 0.1; done
    echo after >&3; exec 3>&-; touch /tmp/written-${line}`
  await runShell(warren, id, `setsid sh -c '${script}' > /tmp/writer.log 2>&1 < /dev/null &`)
  await runShell(warren, id, `until [ -s ${file} ]; do sleep 0.1; done`)
}
const readObject = async (key: string) => (await store.request('GET', 'media', key)).body.toString()

describe('disks', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  let id: string

  test('one that is named at the create is mounted, and what is written to it is in the bucket', async () => {
    await store.createBucket('media')
    const config = { bucket: 'media', endpoint: store.endpoint }
    await requestOk(warren, 'POST', '/disks', { name: 'media', kind: 's3', config, credentials: toBody(FIRST) })

    const created = await createSandbox(warren, { disks: [{ disk_id: 'media', mount_path: '/mnt/media' }] })
    id = created.id
    await waitFor(id, '/mnt/media')
    await runShell(
      warren,
      id,
      'mkdir /mnt/media/dir; echo written in a guest > /mnt/media/dir/f; sync /mnt/media/dir/f',
    )

    assert.equal(await readObject('dir/f'), 'written in a guest\n')
    assert.match(await runShell(warren, id, 'grep /mnt/media /proc/mounts'), /fuse\.bucket-mount/)
  })

  test('one that is attached later sees only its prefix, and cannot be written to if it is read-only', async () => {
    await store.request('PUT', 'media', 'logs/today', { body: 'from elsewhere' })
    const body = { disk_id: 'media', mount_path: '/mnt/logs', sub_path: 'logs', read_only: true }

    const attached = await requestOk(warren, 'POST', `/sandboxes/${id}/disks`, body)
    await waitFor(id, '/mnt/logs')

    assert.deepEqual([attached.ok, attached.id], [true, id])
    assert.equal(await runShell(warren, id, 'ls /mnt/logs; cat /mnt/logs/today'), 'today\nfrom elsewhere')
    assert.match(await runShell(warren, id, '(echo x > /mnt/logs/x) 2>&1 || :'), /Read-only file system/)
  })

  test('a detach saves what is open, and leaves an empty directory', async () => {
    await keepOpen(id, '/mnt/media/open', 'unsaved')

    const to = `/sandboxes/${id}/disks/media?mount_path=${encodeURIComponent('/mnt/media')}`
    const detached = await requestOk(warren, 'DELETE', to)

    assert.equal(detached.warning, undefined)
    assert.equal(await readObject('open'), 'unsaved\n')
    assert.equal(await runShell(warren, id, 'ls -A /mnt/media; grep -c fuse.bucket-mount /proc/mounts'), '1')
    assert.deepEqual(
      (await listMounts(id)).map(({ mount_path }) => mount_path),
      ['/mnt/logs'],
    )
  })

  test('a program continues to write to its open file after a pause, and a fork has no disks', async () => {
    await requestOk(warren, 'POST', `/sandboxes/${id}/disks`, { disk_id: 'media', mount_path: '/mnt/media' })
    await waitFor(id, '/mnt/media')
    await keepOpen(id, '/mnt/media/lines', 'before')

    const child = await forkSandbox(warren, id, { live: true })
    await pauseSandbox(warren, id)
    await resumeSandbox(warren, id)
    await waitFor(id, '/mnt/media')
    await runShell(
      warren,
      id,
      'touch /tmp/continue; until [ -e /tmp/written-before ]; do sleep 0.1; done; cat /tmp/writer.log',
    )

    assert.equal(await readObject('lines'), 'before\nafter\n')
    assert.deepEqual(await listMounts(child.id), [])
    assert.equal(await runShell(warren, child.id, 'ls -A /mnt/media; ls -A /var/lib/warren/disks'), '')
    assert.equal(await runShell(warren, child.id, 'grep -c fuse.bucket-mount /proc/mounts || :'), '0')
    await destroySandbox(warren, child.id)
  })

  test('disks over folders of the system survive a pause, and a fork has its own files again', async () => {
    const folders = ['/etc', '/root', '/var']
    const disks = folders.map((folder) => ({ disk_id: 'media', mount_path: folder, sub_path: `over${folder}` }))
    const over = await createSandbox(warren, { disks })
    for (const folder of folders) await waitFor(over.id, folder)
    await runShell(warren, over.id, folders.map((folder) => `echo kept > ${folder}/file`).join('; '))

    await pauseSandbox(warren, over.id)
    await resumeSandbox(warren, over.id)
    for (const folder of folders) await waitFor(over.id, folder)
    const child = await forkSandbox(warren, over.id, { live: true })

    assert.equal(await runShell(warren, over.id, 'cat /etc/file /root/file /var/file'), 'kept\nkept\nkept')
    assert.equal(await readObject('over/var/file'), 'kept\n')
    const own = 'grep -c bucket /proc/mounts; diff /etc/hostname /proc/sys/kernel/hostname; head -c 5 /etc/passwd'
    assert.equal(await runShell(warren, child.id, own), '0\nroot:')
    assert.match(await runShell(warren, child.id, 'ls /etc/file /root/file 2>&1 || :'), /No such file/)
    await destroySandbox(warren, child.id)
    await destroySandbox(warren, over.id)
  })

  test('new credentials are used at once, without a new mount', async () => {
    await store.stop()
    await store.start(OTHER)
    const refused = await runShell(warren, id, 'echo x > /mnt/media/refused; sync /mnt/media/refused 2>&1 || :')

    await requestOk(warren, 'PATCH', '/disks/media', { credentials: toBody(OTHER) })
    await runShell(warren, id, 'echo rotated > /mnt/media/rotated')

    assert.match(refused, /denied|error/i)
    assert.equal(await readObject('rotated'), 'rotated\n')
    await waitFor(id, '/mnt/media')
  })

  test('no credential is in the memory of the guest or of its VMM, in its files, in logs or in an answer', async () => {
    const secrets = [FIRST, OTHER].flatMap(({ accessKey, secretKey }) => [accessKey, secretKey])
    await runShell(warren, id, 'echo known-to-the-guest-4711 > /mnt/media/known; cat /mnt/media/known > /dev/null')
    const found = (text: string) => findInMemory(findQemuPid(warren, id)!, text)
    const answers = await Promise.all(['/disks', '/disks/media', `/sandboxes/${id}`, `/sandboxes/${id}/disks`].map(get))

    // The search itself works.
    assert.ok(found('known-to-the-guest-4711'))
    for (const secret of secrets) {
      assert.equal(found(secret), false, secret)
      await setImmediate()
    }
    await pauseSandbox(warren, id)
    const files = listFiles(warren.instance.dataDir)
    assert.ok(files.some((file) => file.includes('/snapshots/')) && files.some((file) => file.includes('/log/')))
    for (const file of files) {
      for (const secret of secrets) assert.equal(isInFile(file, secret), false, file)
      // On a slow machine the server closes idle connections meanwhile, which has to be noticed.
      await setImmediate()
    }
    for (const secret of secrets) assert.ok(!answers.join().includes(secret))
    await resumeSandbox(warren, id)
  })

  test('a store that is away is reported, ends no command for ever, and is used again when it is back', async () => {
    await waitFor(id, '/mnt/media')
    await store.stop()

    const status = await runShell(warren, id, 'timeout -s KILL 5 cat /mnt/media/dir/f > /dev/null 2>&1; echo $?')
    const failed = await waitFor(id, '/mnt/media', 'failed')
    await store.start()

    assert.notEqual(status, '0')
    assert.ok(failed.mount_error)
    await waitFor(id, '/mnt/media')
    assert.equal(await runShell(warren, id, 'cat /mnt/media/dir/f'), 'written in a guest')
  })

  test('a killed S3 proxy and a killed host agent are replaced, and the mount works again', async () => {
    const hostAgent = await getHostAgentPid(warren.instance.dataDir)
    const write = (name: string) => `echo ${name} > /mnt/media/${name} && sync /mnt/media/${name}`
    const mounted = await runShell(warren, id, 'grep /mnt/media /proc/self/mountinfo')

    kill(findChild(hostAgent, 's3-proxy/main.ts'))
    // Without an error: the request waits for the next proxy.
    await runShell(warren, id, write('proxy'))
    kill(hostAgent)
    await until(async () => {
      const { status } = await request(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })
      return status === 200
    }, 'the next host agent reaches the guest')
    await runShell(warren, id, `until ${write('agent')}; do sleep 0.2; done`)

    assert.deepEqual([await readObject('proxy'), await readObject('agent')], ['proxy\n', 'agent\n'])
    await waitFor(id, '/mnt/media')
    assert.equal(await runShell(warren, id, 'grep /mnt/media /proc/self/mountinfo'), mounted)
  })

  test('the demo passes a file in each direction, and removes everything', async () => {
    const { stdout } = await runWarren(warren.instance.dataDir, 'disks', 'demo')

    assert.match(stdout, /In the bucket: {3}hello\.txt: hello from \S+\n/)
    assert.match(stdout, /In the sandbox: .*\nhello from the bucket\n/)
    const disks = (await requestOk(warren, 'GET', '/disks')).data as { name: string }[]
    assert.deepEqual(
      disks.map(({ name }) => name),
      ['media'],
    )
  })

  test('a disk is deleted once its sandbox is gone', async () => {
    assert.equal((await request(warren, 'DELETE', '/disks/media')).status, 409)
    await destroySandbox(warren, id)

    assert.equal((await request(warren, 'DELETE', '/disks/media')).status, 200)
    assert.equal(await readObject('rotated'), 'rotated\n')
  })
})

const get = async (to: string): Promise<string> => JSON.stringify(await requestOk(warren, 'GET', to))

function findChild(parent: number, program: string): number {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  const found = pids.find((pid) => {
    try {
      const isChild = readFileSync(`/proc/${pid}/status`, 'utf8').includes(`\nPPid:\t${parent}\n`)
      return isChild && readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(program)
    } catch {
      return false // It exited meanwhile.
    }
  })
  assert.ok(found, `${program} runs`)
  return Number(found)
}

const CHUNK_BYTES = 4 * 1024 * 1024

/** The memory of the guest is part of the process. */
function findInMemory(pid: number, text: string): boolean {
  const regions = readFileSync(`/proc/${pid}/maps`, 'utf8')
    .split('\n')
    .filter((line) => / rw/.test(line))
  const memory = openSync(`/proc/${pid}/mem`, 'r')
  try {
    return regions.some((line) => {
      const [start, end] = line
        .split(' ')[0]!
        .split('-')
        .map((hex) => Number.parseInt(hex, 16)) as [number, number]
      return isInRange(memory, text, start, end)
    })
  } finally {
    closeSync(memory)
  }
}

function isInFile(file: string, text: string): boolean {
  // Of a VMM or a transaction that has ended meanwhile.
  if (!existsSync(file)) return false
  const opened = openSync(file, 'r')
  try {
    return isInRange(opened, text, 0, Number.POSITIVE_INFINITY)
  } finally {
    closeSync(opened)
  }
}

function isInRange(file: number, text: string, start: number, end: number): boolean {
  const wanted = Buffer.from(text)
  const buffer = Buffer.alloc(CHUNK_BYTES)
  // Chunks overlap, so that nothing is missed at their ends.
  for (let position = start; position < end; position += CHUNK_BYTES - wanted.length) {
    const count = tryRead(file, buffer, Math.min(CHUNK_BYTES, end - position), position)
    if (count === 0) return false
    if (buffer.subarray(0, count).includes(wanted)) return true
    if (count < CHUNK_BYTES) return false
  }
  return false
}

/** A mapping of a device cannot be read. */
function tryRead(file: number, buffer: Buffer, length: number, position: number): number {
  try {
    return readSync(file, buffer, 0, length, position)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EIO') return 0
    throw error
  }
}

const listFiles = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath, entry.name))
