/**
 * Finds the route of a request in a table of routes.
 *
 * A path pattern consists of literal segments, parameters (`:id`) and, only at the end, a wildcard (`*`) for one or more
 * segments. A parameter and each segment of a wildcard hold letters, digits, `_` and `-` only, so they never need
 * decoding. A literal segment takes precedence over a parameter. The method `*` stands for every method.
 */

export type Route = { method: string; path: string }

export type RouteMatch<Name extends string> = {
  name: Name
  /** Values of the parameters; that of the wildcard is under `*`, without a leading slash. */
  params: Record<string, string>
}

type Node<Name> = {
  literals: Map<string, Node<Name>>
  parameter?: { name: string; node: Node<Name> }
  /** Routes whose pattern ends here, by method. */
  ends: Map<string, Name>
  wildcards: Map<string, Name>
}

const SEGMENT = /^[\w-]+$/

/** Walks the segments once per request, however long the table is. */
export function createRouteMatcher<Name extends string>(routes: Readonly<Record<Name, Route>>) {
  const root = newNode<Name>()
  for (const [name, route] of Object.entries(routes) as [Name, Route][]) add(root, name, route)

  return (method: string, path: string): RouteMatch<Name> | undefined => {
    const segments = path.split('/')
    const params: Record<string, string> = {}
    let node = root
    // The first is empty: a path begins with a slash.
    for (let at = 1; at < segments.length; at++) {
      const segment = segments[at]!
      const wildcard = node.wildcards.get(method) ?? node.wildcards.get('*')
      if (wildcard !== undefined) {
        const rest = segments.slice(at)
        return rest.every(isSegment) ? { name: wildcard, params: { ...params, '*': rest.join('/') } } : undefined
      }
      const literal = node.literals.get(segment)
      if (literal) {
        node = literal
        continue
      }
      if (!node.parameter || !isSegment(segment)) return undefined
      params[node.parameter.name] = segment
      node = node.parameter.node
    }
    const name = node.ends.get(method) ?? node.ends.get('*')
    return name === undefined ? undefined : { name, params }
  }
}

const isSegment = (text: string): boolean => SEGMENT.test(text)

const newNode = <Name>(): Node<Name> => ({ literals: new Map(), ends: new Map(), wildcards: new Map() })

function add<Name>(root: Node<Name>, name: Name, { method, path }: Route): void {
  let node = root
  for (const segment of path.split('/').slice(1)) {
    if (segment === '*') return void node.wildcards.set(method, name)
    node = segment.startsWith(':') ? parameterOf(node, segment.slice(1)) : literalOf(node, segment)
  }
  node.ends.set(method, name)
}

function literalOf<Name>(node: Node<Name>, segment: string): Node<Name> {
  const child = node.literals.get(segment) ?? newNode<Name>()
  node.literals.set(segment, child)
  return child
}

function parameterOf<Name>(node: Node<Name>, name: string): Node<Name> {
  node.parameter ??= { name, node: newNode<Name>() }
  if (node.parameter.name !== name) throw new Error(`parameters :${node.parameter.name} and :${name} share one place`)
  return node.parameter.node
}
