/** The guest agent's mounts, with the real mount program, S3 proxy and S3 server. The agent runs on this machine. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, open, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import os, { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { addCleanUp } from '@warren/kit/testing/clean-up'
import { startS3Server } from '@warren/kit/testing/s3-server'
import { until } from '@warren/kit/testing/until'
import { type GuestMount, type GuestMounts, GuestMounts as GuestMountsSchema } from '@warren/protocol'
import { Value } from 'typebox/value'
import { openGuestChannel } from '../guest/channel.ts'
import { GUEST_PROGRAMS } from '../images/guest-programs.ts'
import { runCommand } from '../run-command.ts'
import { describeMount, openTestProxy } from './testing/proxy.ts'

const { proxy } = await openTestProxy({ after })
const server = await startS3Server({ after }, 'seaweedfs')
await server.createBucket('media')
const folder = await mkdtemp(path.join(tmpdir(), 'warren-mounts-'))
const mountPath = path.join(folder, 'data')
/** Where the agent has its files. A disk can be mounted over it. */
const machine = path.join(folder, 'machine')
const { channel, agentPid } = await startAgent()

async function startAgent() {
  const socket = path.join(folder, 'agent')
  const env = {
    WARREN_BUCKET_MOUNT: GUEST_PROGRAMS.bucketMount,
    WARREN_BUCKET_STAGES: path.join(machine, 'var/stages'),
  }
  const agent = spawn(GUEST_PROGRAMS.agent, ['--listen-unix', socket], { stdio: 'ignore', env })
  const channel = await openGuestChannel({ agent: socket, hello: `${socket}.hello` }, AbortSignal.timeout(20_000))
  addCleanUp({ after }, async () => {
    await request('PUT', '/mounts', { mounts: [] })
    channel.close()
    agent.kill('SIGKILL')
    await once(agent, 'exit')
    // If the agent could not: a disk must not be emptied.
    for (const at of [mountPath, machine]) await runCommand('umount', ['-R', '-l', at]).catch(() => {}) // Not mounted.
    await rm(folder, { recursive: true, force: true })
  })
  return { channel, agentPid: agent.pid }
}

async function request(method: string, to: string, body?: object): Promise<{ status: number; text: string }> {
  const stream = channel.session.request({ ':method': method, ':path': to }, { endStream: body === undefined })
  if (body !== undefined) stream.end(JSON.stringify(body))
  const [headers] = await once(stream, 'response')
  const chunks = await Array.fromAsync(stream as AsyncIterable<Buffer>)
  return { status: headers[':status'], text: Buffer.concat(chunks).toString() }
}

async function parseMounts(reply: Promise<{ status: number; text: string }>): Promise<GuestMount[]> {
  const { status, text } = await reply
  assert.equal(status, 200, text)
  return (Value.Parse(GuestMountsSchema, JSON.parse(text)) as GuestMounts).mounts
}

const getMounts = (): Promise<GuestMount[]> => parseMounts(request('GET', '/mounts'))
let revision = 0
const wanted = (token: string, at = mountPath) => ({
  id: 'mount-1',
  mount_path: at,
  address: `127.0.0.1:${proxy.port}`,
  token,
  revision: ++revision,
})

const mountIds: string[] = []

async function addToken(): Promise<string> {
  const { token, mount } = describeMount(server, { sandboxIp: '127.0.0.1' })
  await proxy.setMounts([mount])
  mountIds.push(mount.id)
  return token
}

const untilStatus = (status: string) =>
  until(async () => (await getMounts())[0]?.status === status, `the status ${status}`)

test('a wanted mount is mounted, and one that is no longer wanted is saved and gone', async () => {
  const first = await parseMounts(request('PUT', '/mounts', { mounts: [wanted(await addToken())] }))
  assert.equal(first[0]?.status, 'pending')
  await untilStatus('mounted')
  const handle = await open(path.join(mountPath, 'f'), 'w')
  await handle.write('content')

  assert.deepEqual(await parseMounts(request('PUT', '/mounts', { mounts: [] })), [])

  await handle.close().catch(() => {}) // Its mount is gone.
  assert.ok((await server.listKeys('media')).includes('f'))
  assert.deepEqual(await readdir(mountPath), [])
})

test('a mount program that is killed is started again and saves what was not saved', async () => {
  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await untilStatus('mounted')
  const handle = await open(path.join(mountPath, 'unsaved'), 'w')
  await handle.write('content')

  await killMountProgram()
  await handle.close().catch(() => {}) // Its mount is gone.

  await until(async () => (await server.listKeys('media')).includes('unsaved'), 'the file in the bucket')
  // The status can be the one of before the kill.
  const read = () => readFile(path.join(mountPath, 'unsaved'), 'utf8').catch(() => '')
  await until(async () => (await read()) === 'content', 'the file on the disk')
})

/** The child of the agent. */
async function killMountProgram(): Promise<void> {
  for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name))) {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '') // It has exited meanwhile.
    if (new RegExp(`\\(bucket-mount\\) \\S ${agentPid} `).test(stat)) process.kill(Number(pid), 'SIGKILL')
  }
}

test('a disk over the files of the agent is used like any other', async () => {
  await request('PUT', '/mounts', { mounts: [] })
  await request('PUT', '/mounts', { mounts: [wanted(await addToken(), machine)] })
  await untilStatus('mounted')
  assert.deepEqual(await readdir(path.join(machine, 'var')).catch(({ code }) => code), 'ENOENT')

  await writeFile(path.join(machine, 'over'), 'content')
  const handle = await open(path.join(machine, 'over-unsaved'), 'w')
  await handle.write('content')
  await killMountProgram()
  await handle.close().catch(() => {}) // Its mount is gone.

  await until(async () => (await server.listKeys('media')).includes('over-unsaved'), 'the file in the bucket')
  assert.ok((await server.listKeys('media')).includes('over'))
  await request('PUT', '/mounts', { mounts: [] })
  assert.deepEqual(await readdir(machine), ['var'])
})

test('a path through a symbolic link is mounted where it leads', async () => {
  await mkdir(path.join(folder, 'real'))
  await symlink(path.join(folder, 'real'), path.join(folder, 'link'))

  await request('PUT', '/mounts', { mounts: [wanted(await addToken(), path.join(folder, 'link/inner'))] })
  await untilStatus('mounted')
  await writeFile(path.join(folder, 'real/inner/linked'), 'content')

  assert.ok((await server.listKeys('media')).includes('linked'))
  await request('PUT', '/mounts', { mounts: [] })
  assert.deepEqual(await readdir(path.join(folder, 'real/inner')), [])
})

test('after a resume a mount is pending until the host has given it a new token', async () => {
  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await untilStatus('mounted')

  await request('POST', '/wake', {})
  const [woken] = await getMounts()
  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })

  assert.equal(woken?.status, 'pending')
  await untilStatus('mounted')
})

test('conflicts and the guarantees of the server are reported', async () => {
  await writeFile(path.join(mountPath, 'shared'), 'first')
  const handle = await open(path.join(mountPath, 'shared'), 'r+')
  await handle.write('mine', 0)
  await server.request('PUT', 'media', 'shared', { body: 'theirs' })

  await assert.rejects(handle.sync(), { errno: -os.constants.errno.ESTALE })
  await assert.rejects(handle.close(), { errno: -os.constants.errno.ESTALE })
  await until(async () => (await getMounts())[0]?.conflicts_total === 1, 'the report of the conflict')

  const [mount] = await getMounts()
  assert.equal(mount?.conditional_writes, true)
  const [conflict] = mount?.conflicts ?? []
  assert.equal(conflict?.path, 'shared')
  assert.match(conflict?.kept_as ?? '', /machine\/var\/stages\/mount-1\/kept\/\d+-shared$/)
  assert.match(await readFile(conflict!.kept_as, 'utf8'), /^mine/)
})

test('while a disk is not mounted, nothing is written to the directory below', async () => {
  await server.stop()
  await killMountProgram()
  const write = () =>
    writeFile(path.join(mountPath, 'lost'), 'x').then(
      () => 'written',
      ({ code }) => code,
    )
  const codes = new Set<string>()
  await until(async () => {
    codes.add(await write())
    return (await getMounts())[0]?.mount_error?.includes('cannot be reached')
  }, 'the attempt to mount it again')
  for (let count = 0; count < 100; count++) codes.add(await write())

  assert.ok(!codes.has('written'), [...codes].join())
  assert.equal(await write(), 'ENOTCONN')
  await server.start()
  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await untilStatus('mounted')
  await writeFile(path.join(mountPath, 'found'), 'x')
  await request('PUT', '/mounts', { mounts: [] })
  assert.deepEqual(await readdir(mountPath), [])
  assert.ok((await server.listKeys('media')).includes('found'))
})

test('another token is used without unmounting', async () => {
  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await untilStatus('mounted')
  const handle = await open(path.join(mountPath, 'open'), 'w')
  await handle.write('before')

  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await proxy.removeMounts(mountIds.slice(0, -1))
  await handle.write(' after')
  await handle.close()

  const reply = await server.request('GET', 'media', 'open')
  assert.equal(reply.body.toString(), 'before after')
})

test('a server that is away makes the mount fail, and what is not saved is reported', async () => {
  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await untilStatus('mounted')
  await server.stop()
  const handle = await open(path.join(mountPath, 'away'), 'w')
  await handle.write('content')

  const [flushed] = await parseMounts(request('POST', '/mounts/flush', { deadline_ms: 500 }))
  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await untilStatus('failed')

  assert.equal(flushed?.details?.dirty_files, 1)
  assert.deepEqual(flushed?.unsaved, { files: 1, bytes: 7, names: ['away'] })
  assert.match((await getMounts())[0]?.mount_error ?? '', /the bucket does not answer/)
  await server.start()
  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await untilStatus('mounted')
  await handle.close()
  assert.ok((await server.listKeys('media')).includes('away'))
})

test('a mount point that cannot be used is a failure that says why', async () => {
  await request('PUT', '/mounts', { mounts: [] })
  await rm(mountPath, { recursive: true })
  await writeFile(mountPath, 'in the way')

  await request('PUT', '/mounts', { mounts: [wanted(await addToken())] })
  await untilStatus('failed')

  assert.match((await getMounts())[0]?.mount_error ?? '', /cannot be used as a mount point/)
  await rm(mountPath)
  await mkdir(mountPath)
})
