import assert from 'node:assert/strict'
import { rmSync } from 'node:fs'
import http2, { type ServerHttp2Stream } from 'node:http2'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { createHostRouter, type HostHandlers, HostRequestError, respondFailure } from '@warren/kit/host-router'
import type { HostBase, HostBaseBody, HostState } from '@warren/protocol'
import { makeFolder } from '../images/testing.ts'
import { bases } from './main.ts'

const HOST: HostState = {
  id: '127.0.0.1',
  region: 'local',
  mem_mib: 4096,
  cidr: '100.64.0.0/16',
  accel: 'tcg',
  disks: false,
  volume: { total_mib: 10_000, free_mib: 5_000, floor_mib: 500, sandboxes_mib: 0 },
  images: [
    { name: 'debian:13', state: 'ready' },
    { name: 'devbox:1', state: 'building', progress: 'installing packages' },
  ],
  vms: [],
  builds: [],
}

/** A host agent with the routes that the command uses. `failing`: the memory of a base that cannot be booted. */
async function start(t: TestContext, { failing }: { failing?: number } = {}) {
  const dataDir = await makeFolder(t)
  const prepared: HostBaseBody[] = []
  let building: HostBase | undefined
  let listed = 0
  let onListed = () => {}
  const handlers: Partial<HostHandlers> = {
    getHost: async () => HOST,
    async listBases() {
      if (building && ++listed === 2) onListed()
      return { bases: building ? [building] : [] }
    },
    async prepareBase({ body }) {
      const { image, ...size } = body
      building = { key: 'k', image, ...size, state: 'building', progress: 'booting', size_bytes: 0, vms: 0 }
      listed = 0
      // When the command asks for the second time, it has shown the first progress.
      await new Promise<void>((resolve) => {
        onListed = resolve
      })
      building = undefined
      if (body.mem_mib === failing) throw new HostRequestError('invalid', 'the guest panicked')
      prepared.push(body)
      return { key: 'k', booted: prepared.length > 1, took_ms: 14_210 }
    },
  }
  const route = createHostRouter(handlers as HostHandlers)
  const server = http2.createServer()
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    route(stream, headers).catch((error) => respondFailure(stream, 'boot_failed', (error as Error).message))
  })
  const socket = path.join(dataDir, 'host.sock')
  await new Promise<void>((resolve) => server.listen(socket, resolve))
  t.after(() => server.close())
  const run = async (...args: string[]) => {
    let [out, err] = ['', '']
    const code = await bases(args, {
      env: { WARREN_DATA_DIR: dataDir, HOME: dataDir, WARREN_PREPARE_SHAPES: 's-1vcpu-256mb, s-2vcpu-2gb' },
      stdout: { write: (text: string) => (out += text) },
      stderr: { write: (text: string) => (err += text) },
    })
    return { code, out, err }
  }
  return { run, prepared, dataDir, stop: () => rmSync(socket) }
}

test('prepare builds the bases of the configured shapes, with a line per phase on a pipe', async (t) => {
  const { run, prepared } = await start(t)

  const { code, out, err } = await run('prepare', 'debian:13')

  assert.deepEqual([code, err], [0, ''])
  assert.deepEqual(
    prepared.map(({ image, vcpu, mem_mib, disk_mib }) => [image, vcpu, mem_mib, disk_mib]),
    [
      ['debian:13', 1, 256, 10_240],
      ['debian:13', 2, 2048, 10_240],
    ],
  )
  assert.match(out, /^ {2}debian:13 s-1vcpu-256mb: booting$/m)
  assert.match(out, /^ {2}debian:13 s-1vcpu-256mb: is ready$/m)
  assert.match(out, /^ {2}debian:13 s-2vcpu-2gb: booted in 14\.2 s$/m)
})

test('prepare --all leaves out what is too large, and shapes that share a base are prepared once', async (t) => {
  const { run, prepared } = await start(t)

  const { code, out } = await run('prepare', 'debian:13', '--all', '--disk', '4096')

  assert.equal(code, 0)
  assert.deepEqual(
    prepared.map(({ vcpu, mem_mib }) => `${vcpu} ${mem_mib}`),
    ['1 512', '1 1024', '1 256', '1 2048', '2 2048', '2 4096', '4 4096'],
  )
  assert.ok(prepared.every(({ disk_mib }) => disk_mib === 4096))
  assert.match(out, /left out, larger than 4096 MiB: s-4vcpu-8gb, s-8vcpu-8gb, s-8vcpu-16gb/)
  assert.match(out, /debian:13 s-0\.5vcpu-1gb, s-1vcpu-1gb: booted/)
})

test('a base that fails does not keep the others from being prepared', async (t) => {
  const { run, prepared } = await start(t, { failing: 256 })

  const { code, out } = await run('--json', 'prepare', 'debian:13')

  assert.deepEqual([code, prepared.length], [1, 1])
  const [failed, done] = JSON.parse(out)
  assert.deepEqual([failed.error, done.error, done.shapes], ['the guest panicked', undefined, 's-2vcpu-2gb'])
})

test('what is unknown is answered with what is known', async (t) => {
  const { run, prepared } = await start(t)

  const image = await run('prepare', 'debian:99')
  const building = await run('prepare', 'devbox:1')
  const shape = await run('prepare', 'debian:13', 's-1vcpu-256mb', 's-99')
  const both = await run('prepare', 'debian:13', 's-1vcpu-256mb', '--all')
  const disk = await run('prepare', 'debian:13', '--disk', 'ten')

  assert.deepEqual(
    [image, building, shape, both, disk].map(({ code }) => code),
    [1, 1, 1, 1, 2],
  )
  assert.match(image.err, /unknown image debian:99; this host has debian:13, devbox:1/)
  assert.match(building.err, /devbox:1 is building: installing packages/)
  assert.match(shape.err, /unknown shape s-99; known are s-0\.25vcpu-512mb, /)
  assert.match(both.err, /not both/)
  assert.match(disk.err, /whole number of MiB/)
  assert.deepEqual(prepared, [])
})

test('without a running Warren the command says how to start it', async (t) => {
  const { run, dataDir, stop } = await start(t)
  stop()

  const { code, err } = await run('list')

  assert.equal(code, 1)
  assert.match(err, new RegExp(`Warren is not running on ${dataDir}; start it with .* start`))
})

test('list prints a table or JSON', async (t) => {
  const { run } = await start(t)

  assert.equal((await run('list')).out, 'There are no bases.\n')
  assert.deepEqual(JSON.parse((await run('--json', 'list')).out), [])
})
