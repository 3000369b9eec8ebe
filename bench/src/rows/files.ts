/** How fast files are transferred, against the guest agent's port without the API and the host agent. */
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { GuestGrowResponse } from '@warren/protocol'
import { callGuest } from '../../../host-agent/src/guest/call-guest.ts'
import { type BareVm, bootBareVm } from '../../../host-agent/src/testing/bare-vm.ts'
import { interleave } from '../interleave.ts'
import type { Comparison, Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { bareParts } from '../vm/bare-parts.ts'
import { instance, LARGE } from '../vm/instance.ts'

const MIB = 1024 * 1024
const FILE_BYTES = 64 * MIB
const PATH = '/var/tmp/bench.bin'
const GROW_LIMIT_MS = 60_000
const BASELINE = "guest agent's bare virtio-serial port"

export const pushRow: Row = {
  name: 'push',
  what: `PUT files of ${FILE_BYTES / MIB} MiB, against the same bytes written into the agent's port without Warren`,
  unit: 'MB/s',
  baseline: BASELINE,
  measure: (run) => measureFiles(run, 'push'),
  comparison: compareFiles('push'),
}

export const pullRow: Row = {
  name: 'pull',
  what: `GET files of ${FILE_BYTES / MIB} MiB, against the same bytes read from the agent's port without Warren`,
  unit: 'MB/s',
  baseline: BASELINE,
  measure: (run) => measureFiles(run, 'pull'),
  comparison: compareFiles('pull'),
}

export type Direction = 'push' | 'pull'
/** The channel to a guest agent without Warren. */
type Bare = Pick<BareVm, 'channel'>

async function measureFiles(run: Run, direction: Direction): Promise<Measurement> {
  const { api } = await run.open(instance)
  const { id } = await api.create(LARGE)
  const bare = await bootBareVm(await run.open(bareParts), { vcpu: 1, mem_mib: 1024 })
  try {
    await growDisk(bare)
    return await measureTransfers(run, direction, { api, id }, bare)
  } finally {
    await bare.stop()
    await api.delete(id)
  }
}

export async function measureTransfers(
  run: Run,
  direction: Direction,
  { api, id }: { api: Api; id: string },
  bare: Bare,
): Promise<Measurement> {
  const data = randomBytes(FILE_BYTES)
  await api.putFile(id, PATH, data)
  await pushBare(bare, data)
  const transferBare = {
    push: () => pushBare(bare, data),
    pull: async () => checkLength(await pullBare(bare)),
  }
  const turns = await interleave(run, {
    ours: () => rateOf(() => transfer(api, id, direction, data)),
    baseline: () => rateOf(transferBare[direction]),
  })
  return { ...turns, ok: 1 } // A failed transfer ends the row: it has no rate.
}

function compareFiles(direction: Direction): Comparison {
  return {
    async open(_run, api) {
      const data = randomBytes(FILE_BYTES)
      const { id } = await api.create(LARGE)
      await api.putFile(id, PATH, data)
      return {
        takeTurn: async () => ({
          samples: [await rateOf(() => transfer(api, id, direction, data))],
          failed: 0,
        }),
        close: () => api.delete(id),
      }
    },
  }
}

async function transfer(api: Api, id: string, direction: Direction, data: Buffer): Promise<void> {
  if (direction === 'push') await api.putFile(id, PATH, data)
  else checkLength(await api.getFile(id, PATH))
}

async function rateOf(move: () => Promise<void>): Promise<number> {
  const startedAt = performance.now()
  await move()
  return FILE_BYTES / 1e6 / ((performance.now() - startedAt) / 1000)
}

function checkLength(bytes: number): void {
  if (bytes !== FILE_BYTES) throw new Error(`received ${bytes} of ${FILE_BYTES} bytes`)
}

const bareUrl = `/files?path=${encodeURIComponent(PATH)}`

/** The filesystem of an image has no free space. */
async function growDisk({ channel }: Bare): Promise<void> {
  const request = { method: 'POST', path: '/grow', body: {}, response: GuestGrowResponse } as const
  await callGuest(channel.session, request, AbortSignal.timeout(GROW_LIMIT_MS))
}

async function pushBare({ channel }: Bare, data: Buffer): Promise<void> {
  const stream = channel.session.request({ ':method': 'PUT', ':path': bareUrl })
  stream.end(data)
  const [headers] = await once(stream, 'response')
  stream.resume()
  await once(stream, 'close')
  if (headers[':status'] !== 200) throw new Error(`the guest agent responded ${headers[':status']}`)
}

async function pullBare({ channel }: Bare): Promise<number> {
  const stream = channel.session.request({ ':method': 'GET', ':path': bareUrl })
  let bytes = 0
  for await (const chunk of stream) bytes += (chunk as Buffer).length
  return bytes
}
