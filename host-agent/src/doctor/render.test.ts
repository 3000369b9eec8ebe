import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CheckOutcome } from './check.ts'
import { canStart, renderOutcomes } from './render.ts'

const fine: CheckOutcome = { name: 'kernel', needed: 'required', ok: true, detail: '6.1.0' }
const noted: CheckOutcome = { name: 'kvm', needed: 'recommended', ok: true, detail: 'no', note: 'slower' }
const advised: CheckOutcome = { name: 'skopeo', needed: 'recommended', ok: false, detail: 'not found', fix: 'get it' }
const broken: CheckOutcome = { name: 'node', needed: 'required', ok: false, detail: 'too old', fix: 'npm ci' }

test('lines are aligned, advice is indented, the summary is last', () => {
  const text = renderOutcomes([fine, noted, advised], { colour: false })

  assert.equal(
    text,
    `ok      kernel  6.1.0
ok      kvm     no
        note: slower
missing skopeo  not found (recommended)
        fix: get it

2 of 3 checks ok, 0 required and 1 recommended missing: Warren can start.
`,
  )
})

test('a required check that failed is told in the summary', () => {
  const text = renderOutcomes([broken, advised], { colour: false })

  assert.match(text, /^missing node {4}too old$/m)
  assert.match(text, /0 of 2 checks ok, 1 required and 1 recommended missing: Warren cannot start/)
})

test('when all is well the summary says no more than that', () => {
  assert.ok(renderOutcomes([fine, noted], { colour: false }).endsWith('\n\n2 of 2 checks ok.\n'))
})

test('colour only wraps words: without it the text is the same', () => {
  const all = [fine, noted, advised, broken]

  const coloured = renderOutcomes(all, { colour: true })

  assert.ok(coloured.startsWith('\x1b[32mok     \x1b[0m kernel'))
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the escape is what is looked for
  assert.equal(coloured.replace(/\x1b\[\d+m/g, ''), renderOutcomes(all, { colour: false }))
})

test('what a tool printed cannot break the lines or reach the terminal as control characters', () => {
  const text = renderOutcomes([{ ...fine, detail: 'two\nlines \x1b[31mred' }], { colour: false })

  assert.match(text, /^ok {6}kernel {2}two lines \[31mred\n/)
})

test('only a required check that failed keeps Warren from starting', () => {
  assert.equal(canStart([fine, noted, advised]), true)
  assert.equal(canStart([fine, broken]), false)
})
