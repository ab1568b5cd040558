package keeper

// ConfinedName is the name under which a child starts.
const ConfinedName = confinedName
