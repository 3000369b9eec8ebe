/** Reads the imports of TypeScript files and finds cycles among them. Used by layout.test.ts. */
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'

export type Import = {
  specifier: string
  /** False for `import type`, and where every imported name is marked `type`. */
  isValue: boolean
}

/** Files by path, each with the files that it imports. */
export type Graph = Map<string, Set<string>>

/** `import … from '…'` and `export … from '…'`, on one line or several. Group 1 holds the names. */
const FROM = /^(?:import|export)\s+([\w$\s{},*]+?)\s+from\s+'([^']+)'/gm
const SIDE_EFFECT = /^import\s+'([^']+)'/gm
/** Counts as a value import: it loads the module too, only later. */
const DYNAMIC = /\bimport\('([^']+)'\)/g

export function parseImports(source: string): Import[] {
  const named = [...source.matchAll(FROM)].map(([, names, specifier]) => ({
    specifier: specifier!,
    isValue: importsValue(names!),
  }))
  const others = [...source.matchAll(SIDE_EFFECT), ...source.matchAll(DYNAMIC)]
  return [...named, ...others.map(([, specifier]) => ({ specifier: specifier!, isValue: true }))]
}

/** Decides from the text between `import` and `from`: `type { A }`, `{ type A, b }`, `a, { type B }`, `* as a`. */
function importsValue(names: string): boolean {
  // `import type from './a.ts'` imports a value that is called `type`.
  if (/^type\s+[\w${*]/.test(names)) return false
  const braced = /\{([^}]*)\}/.exec(names)
  if (!braced) return true
  if (names.replace(braced[0], '').replace(',', '').trim() !== '') return true
  const specifiers = braced[1]!.split(',').map((one) => one.trim())
  return specifiers.some((one) => one !== '' && !/^type\s+(?!as\s+\w+$)/.test(one))
}

/** The graph of value imports between `files`, which are paths relative to `root`. Packages are not followed. */
export function buildValueGraph(root: string, files: readonly string[]): Graph {
  const known = new Set(files)
  return new Map(
    files.map((file) => {
      const imports = parseImports(readFileSync(path.join(root, file), 'utf8'))
      const targets = imports
        .filter((one) => one.isValue)
        .map((one) => resolveImport(root, file, one.specifier))
        .filter((target) => target !== undefined && known.has(target))
      return [file, new Set(targets as string[])]
    }),
  )
}

/** One cycle for each group of files that import each other, as the list of its files in order of import. */
export function findCycles(graph: Graph): string[][] {
  return stronglyConnected(graph)
    .map((group) => shortestCycle(graph, new Set(group), group[0]!))
    .filter((cycle) => cycle.length > 0)
}

/** `@warren/kit/log` is `kit/src/log.ts`, and `@warren/protocol` its `index.ts`, as the packages' `exports` say. */
function resolveImport(root: string, file: string, specifier: string): string | undefined {
  if (specifier.startsWith('.')) return path.join(path.dirname(file), specifier)
  const [, workspace, module = 'index'] = /^@warren\/([^/]+)(?:\/(.+))?$/.exec(specifier) ?? []
  if (workspace === undefined) return undefined
  const target = path.join(workspace, 'src', `${module}.ts`)
  return existsSync(path.join(root, target)) ? target : undefined
}

/** Tarjan's algorithm. A file that is in no cycle is a group of one. */
function stronglyConnected(graph: Graph): string[][] {
  const order = new Map<string, number>()
  const lowest = new Map<string, number>()
  const stack: string[] = []
  const groups: string[][] = []

  function visit(file: string): void {
    order.set(file, order.size)
    lowest.set(file, order.get(file)!)
    stack.push(file)
    for (const target of graph.get(file) ?? []) {
      if (!order.has(target)) {
        visit(target)
        lowest.set(file, Math.min(lowest.get(file)!, lowest.get(target)!))
      } else if (stack.includes(target)) {
        lowest.set(file, Math.min(lowest.get(file)!, order.get(target)!))
      }
    }
    if (lowest.get(file) === order.get(file)) groups.push(stack.splice(stack.indexOf(file)))
  }

  for (const file of graph.keys()) if (!order.has(file)) visit(file)
  return groups
}

/** The shortest way from `start` back to itself inside its group; empty when there is none. */
function shortestCycle(graph: Graph, group: ReadonlySet<string>, start: string): string[] {
  const paths = [[start]]
  const seen = new Set<string>()
  for (let way = paths.shift(); way; way = paths.shift()) {
    for (const target of graph.get(way.at(-1)!) ?? []) {
      if (target === start) return [...way, start]
      if (!group.has(target) || seen.has(target)) continue
      seen.add(target)
      paths.push([...way, target])
    }
  }
  return []
}
