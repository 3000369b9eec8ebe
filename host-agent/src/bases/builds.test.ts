import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Build, Builds, Yielded } from './builds.ts'
import type { WantedBase } from './key.ts'

const wanted = (key: string) => ({ key }) as WantedBase // The rest is for the work itself.
const [background, foreground] = [{ isBackground: true }, { isBackground: false }]

/** Work that a test ends. It fails when it has to yield, a moment later, as a boot that is rolled back. */
function makeWork() {
  const work = Promise.withResolvers<string>()
  const started: Build[] = []
  const start = (build: Build) => {
    started.push(build)
    build.yielding.addEventListener('abort', () => setImmediate(() => work.reject(build.yielding.reason)))
    return work.promise
  }
  return { start, started, end: (text: string) => work.resolve(text) }
}

test('concurrent callers share the work', async () => {
  const builds = new Builds<string>()
  const [one, other] = [makeWork(), makeWork()]

  const results = Promise.all([
    builds.run(wanted('a'), foreground, one.start),
    builds.run(wanted('a'), foreground, other.start),
  ])
  assert.equal(builds.list().length, 1)
  one.end('built')

  assert.deepEqual(await results, ['built', 'built'])
  assert.deepEqual([other.started, builds.list()], [[], []])
})

test('work in the background yields to a request for another base', async () => {
  const builds = new Builds<string>()
  const [first, second, third] = [makeWork(), makeWork(), makeWork()]
  const idle = builds.run(wanted('a'), background, first.start)

  const request = builds.run(wanted('b'), foreground, second.start)

  await assert.rejects(idle, Yielded)
  // It is not in the way of a request, nor of what else is prepared.
  const next = builds.run(wanted('c'), background, third.start)
  assert.deepEqual(
    [second.started, third.started].map(([build]) => build?.yielding.aborted),
    [false, false],
  )
  second.end('for the request')
  third.end('prepared')
  assert.deepEqual([await request, await next], ['for the request', 'prepared'])
})

test('a request for the same base joins the work, which then yields to no other', async () => {
  const builds = new Builds<string>()
  const [first, second] = [makeWork(), makeWork()]
  const idle = builds.run(wanted('a'), background, first.start)
  const build = first.started[0]!
  let brought = 0
  build.onForeground = () => void brought++

  const joined = builds.run(wanted('a'), foreground, second.start)
  const again = builds.run(wanted('a'), foreground, second.start)
  const other = builds.run(wanted('b'), foreground, second.start)

  assert.deepEqual([brought, build.isBackground, build.yielding.aborted], [1, false, false])
  first.end('built')
  second.end('other')
  assert.deepEqual(await Promise.all([idle, joined, again, other]), ['built', 'built', 'built', 'other'])
})

test('a request for a base whose work is yielding starts it again', async () => {
  const builds = new Builds<string>()
  const [first, second, third] = [makeWork(), makeWork(), makeWork()]
  const idle = builds.run(wanted('a'), background, first.start)
  idle.catch(() => {})
  const other = builds.run(wanted('b'), foreground, second.start)

  const request = builds.run(wanted('a'), foreground, third.start)
  second.end('other')
  third.end('built')

  await assert.rejects(idle, Yielded)
  assert.deepEqual([await other, await request], ['other', 'built'])
})
