import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  type DiskChain,
  diskObject,
  freezeActive,
  freezeSaved,
  frozenDisks,
  layersBelowUnsaved,
  mergeFrozen,
  replaceLayers,
  startChain,
  unsavedDisks,
} from './chain.ts'

const CLUSTERS = 6

type Content = Map<number, number>

/**
 * A sandbox whose disk has a few clusters, with the chain under test beside a plain disk that is simply overwritten. It
 * does to files in memory what live.ts, save.ts and compact.ts do to real ones.
 */
class ModelVm {
  /** What the guest wrote: the truth to compare with. */
  readonly written: Content = new Map()
  /** Every file that ever existed, by the name of its object. */
  readonly files = new Map<string, Content>()
  /** The content of each frozen file when it was frozen. */
  readonly frozen = new Map<string, string>()
  /** Layers of each generation, oldest first. */
  readonly generations = new Map<number, string[]>()
  vmmId = 'vmm0'
  chain: DiskChain = startChain([], null)
  /** What QEMU has open, oldest first. */
  open: string[] = []

  constructor() {
    this.#addDisk()
  }

  #addDisk(): void {
    const name = diskObject(this.vmmId, this.chain.active)
    assert.ok(!this.files.has(name), `${name} is used twice`)
    this.files.set(name, new Map())
    this.open.push(name)
  }

  #freeze(): void {
    const name = this.open.at(-1)!
    this.frozen.set(name, JSON.stringify([...this.files.get(name)!]))
  }

  write(cluster: number, value: number): void {
    this.files.get(diskObject(this.vmmId, this.chain.active))!.set(cluster, value)
    this.written.set(cluster, value)
  }

  /** The layers of a manifest that is saved now. */
  saved(): string[] {
    const { generation } = this.chain
    const ofGeneration = generation === null ? undefined : this.generations.get(generation)
    const own = unsavedDisks(this.chain).map((disk) => diskObject(this.vmmId, disk))
    return [...layersBelowUnsaved(this.chain, ofGeneration), ...own]
  }

  fork(): void {
    this.#freeze()
    this.chain = freezeActive(this.chain)
    this.#addDisk()
  }

  /** A pause after which the same VMM is resumed from standby. */
  pauseToStandby(): void {
    const generation = this.generations.size + 1
    this.generations.set(generation, this.saved())
    this.#freeze()
    this.chain = freezeSaved(this.chain, generation)
    this.#addDisk()
  }

  /** A pause after which a new VMM is started from what was saved. */
  pauseToDisk(): void {
    const generation = this.generations.size + 1
    const layers = this.saved()
    this.generations.set(generation, layers)
    this.#freeze()
    this.vmmId = `vmm${generation}`
    this.chain = startChain(layers, generation)
    this.open = [...layers]
    this.#addDisk()
  }

  /** Merges layers of the newest generation from `from` on. */
  merge(from: number): void {
    const generation = this.generations.size
    const layers = this.generations.get(generation)
    if (!layers || from >= layers.length) return
    const name = `merged-${this.files.size}`
    const content = read(this.files, layers.slice(from))
    this.files.set(name, content)
    this.frozen.set(name, JSON.stringify([...content]))
    this.generations.set(generation, [...layers.slice(0, from), name])
  }

  /** Only possible while the active disk is empty, as it is on standby. */
  shorten(): void {
    const active = diskObject(this.vmmId, this.chain.active)
    const layers = this.generations.get(this.generations.size)
    if (
      !layers ||
      this.chain.generation === null ||
      this.chain.firstUnsaved !== this.chain.active ||
      this.files.get(active)!.size > 0
    )
      return
    this.chain = replaceLayers(this.chain, layers)
    this.open = [...layers, active]
  }

  /** Merges the disks that forks froze, and layers from `from` on; the active disk may have content by now. */
  mergeFrozen(from: number): void {
    const frozen = frozenDisks(this.chain).map((disk) => diskObject(this.vmmId, disk))
    if (frozen.length === 0) return
    const below = this.saved().slice(0, -1 - frozen.length)
    const kept = below.slice(0, from)
    const name = `merged-${this.files.size}`
    const content = read(this.files, [...below.slice(from), ...frozen])
    this.files.set(name, content)
    this.frozen.set(name, JSON.stringify([...content]))
    this.chain = mergeFrozen(this.chain, [...kept, name])
    this.open = [...kept, name, diskObject(this.vmmId, this.chain.active)]
  }

  check(): void {
    const { chain } = this
    const truth = sorted(this.written)
    assert.deepEqual(sorted(read(this.files, this.open)), truth, 'what QEMU reads')
    assert.deepEqual(sorted(read(this.files, this.saved())), truth, 'what a save would contain')
    assert.equal(this.open.at(-1), diskObject(this.vmmId, chain.active), 'the newest file is the active one')
    assert.ok(chain.firstUnsaved <= chain.active)
    for (const [name, content] of this.frozen) assert.equal(JSON.stringify([...this.files.get(name)!]), content, name)
    for (const name of this.open.slice(0, -1)) assert.ok(this.frozen.has(name), `${name} is below and not frozen`)
  }
}

/** Of each cluster the newest file that has it. */
function read(files: ReadonlyMap<string, Content>, names: readonly string[]): Content {
  const content: Content = new Map()
  for (const name of names) for (const [cluster, value] of files.get(name)!) content.set(cluster, value)
  return content
}

const sorted = (content: Content) => [...content].sort(([one], [other]) => one - other)

type Step = { name: string; run: (vm: ModelVm) => void }
const step = (name: string, run: Step['run']): Step => ({ name, run })

const anyStep: fc.Arbitrary<Step> = fc.oneof(
  fc
    .tuple(fc.nat(CLUSTERS - 1), fc.nat(255))
    .map(([cluster, value]) => step(`write ${value} to ${cluster}`, (vm) => vm.write(cluster, value))),
  fc.constant(step('fork', (vm) => vm.fork())),
  fc.constant(step('pause to standby', (vm) => vm.pauseToStandby())),
  fc.constant(step('pause to disk', (vm) => vm.pauseToDisk())),
  fc.nat(4).map((from) => step(`merge from ${from}`, (vm) => vm.merge(from))),
  fc.constant(step('shorten', (vm) => vm.shorten())),
  fc.nat(4).map((from) => step(`merge frozen disks and layers from ${from}`, (vm) => vm.mergeFrozen(from))),
)

test('in every order of writes, forks, pauses, merges and shortenings, the chain has the content of the disk', () => {
  fc.assert(
    fc.property(fc.array(anyStep, { maxLength: 60 }), (steps) => {
      const vm = new ModelVm()
      vm.check()
      for (const { name, run } of steps) {
        run(vm)
        try {
          vm.check()
        } catch (error) {
          throw new Error(`after ${name}`, { cause: error })
        }
      }
    }),
    { numRuns: 500 },
  )
})

test('a save adds the disks from the first unsaved to the active one', () => {
  const started = startChain(['layer'], 2)

  assert.deepEqual(unsavedDisks(started), [0])
  assert.deepEqual(unsavedDisks(freezeActive(freezeActive(started))), [0, 1, 2])
  assert.deepEqual(unsavedDisks(freezeActive(freezeSaved(started, 3))), [1, 2])
})

test('disks that are in no generation cannot be replaced', () => {
  const chain = freezeActive(freezeSaved(startChain([], null), 1))

  assert.throws(() => replaceLayers(chain, ['merged']), /disks 1 to 1 are in no generation/)
})

test('disks that forks froze are merged into a layer, and the save that follows adds the active disk alone', () => {
  let chain = freezeSaved(startChain(['layer'], 1), 2)
  for (let forks = 0; forks < 3; forks++) chain = freezeActive(chain)
  assert.deepEqual(frozenDisks(chain), [1, 2, 3])

  const merged = mergeFrozen(chain, ['layer', 'merged'])

  assert.deepEqual([frozenDisks(merged), unsavedDisks(merged)], [[], [4]])
  assert.deepEqual(layersBelowUnsaved(merged, undefined), ['layer', 'merged'])
  // Generation 2 does not have what was written between its pause and the last fork.
  assert.throws(() => replaceLayers(merged, ['older']), /in no generation/)
})

test('without the generation below it, a chain is not saved with a gap', () => {
  const fromGeneration = startChain(['layer'], 2)

  assert.deepEqual(layersBelowUnsaved(fromGeneration, undefined), ['layer'])
  assert.throws(() => layersBelowUnsaved(freezeSaved(fromGeneration, 3), undefined), /generation 3, .*cannot be read/)
})

test('shortening resets the count of freezes on standby, and no number', () => {
  let chain = startChain([], null)
  for (let generation = 1; generation <= 8; generation++) chain = freezeSaved(chain, generation)

  const shortened = replaceLayers(chain, ['merged'])

  assert.deepEqual(shortened, { ...chain, layers: ['merged'], standbyFreezes: 0 })
  assert.equal(shortened.active, 8)
})
