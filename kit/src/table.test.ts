import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Column, renderLines, renderTable } from './table.ts'

type Sandbox = { name: string; memMib: number }

const COLUMNS: Column<Sandbox>[] = [
  { title: 'NAME', cell: ({ name }) => name },
  { title: 'MIB', align: 'right', cell: ({ memMib }) => String(memMib) },
  { title: 'NOTE', cell: ({ memMib }) => (memMib > 1000 ? 'large' : '') },
]

test('a column is as wide as its widest cell, and lines have no trailing blanks', () => {
  const rows = [
    { name: 'web', memMib: 512 },
    { name: 'database', memMib: 4096 },
  ]

  assert.equal(
    renderTable(COLUMNS, rows),
    `NAME       MIB  NOTE
web        512
database  4096  large
`,
  )
})

test('a table without rows is its titles', () => {
  assert.equal(renderTable(COLUMNS, []), 'NAME  MIB  NOTE\n')
})

test('lines without titles are aligned to the left', () => {
  assert.deepEqual(
    renderLines([
      ['create', 'from the pool'],
      ['get', 'one sandbox'],
    ]),
    ['create  from the pool', 'get     one sandbox'],
  )
})
